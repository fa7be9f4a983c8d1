package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
	"execserver/internal/cli/serve"
	"execserver/internal/peer"
)

// forwardTimeout bounds how long forward reconnects: in effect, until it is ended.
const forwardTimeout = 10 * 365 * 24 * time.Hour

// ForwardCommand returns the command forward.
func ForwardCommand() *cobra.Command {
	var m cli.Machine
	var asJSON, confined bool
	command := &cobra.Command{
		Use:        "forward [flags] [LOCAL:]ADDRESS...",
		Short:      "Forward local ports to a machine",
		GroupID:    cli.GroupWork,
		SuggestFor: []string{"port-forward", "tunnel"},
		Long: "forward listens on this machine, and relays each connection through the other machine, like ssh -L.\n" +
			"It prints the addresses on which it listens, and serves until a signal ends it. If the connection to\n" +
			"the server breaks, forward connects again, but forwarded connections end.\n\n" +
			"ADDRESS is the destination as the other machine sees it: HOST:PORT, PORT for a port of that machine,\n" +
			"or the path of a unix socket. LOCAL is PORT or HOST:PORT on this machine, by default the\n" +
			"port of ADDRESS. Port 0 picks a free port. Local users can connect to the port; other machines cannot,\n" +
			"unless you give a HOST.",
		Example: "  exec-server forward --on box 3000\n" +
			"  exec-server forward --on box 8080:localhost:3000 5432:db.internal:5432\n" +
			"  exec-server forward --on box 2375:/run/docker.sock",
		ValidArgsFunction: cobra.NoFileCompletions,
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.NewUsageError(errors.New("name at least one port to forward, such as 3000 or 8080:localhost:3000"), command)
			}
			for _, arg := range args {
				if _, err := parsePorts(arg); err != nil {
					return cli.NewUsageError(err, command)
				}
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if err := m.Check(command); err != nil {
				return err
			}
			opts := &client.Options{
				Name: "exec-server-forward", RecoveryTimeout: forwardTimeout, AllowConfinedPeers: confined,
				OnState: func(s client.State) { showState(command.ErrOrStderr(), s) },
				Log:     slog.New(&warnings{command.ErrOrStderr()}),
			}
			return m.DoWith(opts, func(ctx context.Context, env *client.Environment) error {
				return forwardAll(ctx, env, command.OutOrStdout(), args, asJSON)
			})
		},
	}
	f := command.Flags()
	f.BoolVar(&asJSON, "json", false, "print a JSON object with the address for each port, one per line")
	serve.DefineAllowConfined(f, &confined)
	m.AddFlags(f)
	return command
}

// ports is a parsed argument of forward.
type ports struct {
	local            string // HOST:PORT
	network, address string // of the destination
}

// parsePorts parses [LOCAL:]ADDRESS.
func parsePorts(arg string) (ports, error) {
	wrong := fmt.Errorf("invalid port to forward %q: expected [LOCAL:]ADDRESS, such as 3000 or 8080:localhost:3000", arg)
	words := splitAddress(arg)
	last := len(words) - 1
	p := ports{network: "tcp", address: words[last]}
	switch {
	case strings.HasPrefix(words[last], "/"): // the path of a socket
		p.network = "unix"
		words = words[:last]
		if last == 0 {
			return p, fmt.Errorf("invalid port to forward %q: name a port of this machine for the socket, as in 8080:%s", arg, arg)
		}
	case !isPort(words[last]) || words[last] == "0":
		return p, wrong
	case last == 0: // PORT
		p.address = net.JoinHostPort("localhost", words[last])
	case isPort(words[last-1]): // LOCAL:PORT
		p.address = net.JoinHostPort("localhost", words[last])
		words = words[:last]
	case words[last-1] == "":
		return p, wrong
	default:
		p.address = net.JoinHostPort(words[last-1], words[last])
		if words = words[:last-1]; len(words) == 0 { // HOST:PORT
			_, port, _ := net.SplitHostPort(p.address)
			words = []string{port}
		}
	}
	host := "localhost"
	switch {
	case len(words) == 2 && words[0] != "":
		host, words = words[0], words[1:]
	case len(words) != 1:
		return p, wrong
	}
	if !isPort(words[0]) {
		return p, wrong
	}
	p.local = net.JoinHostPort(host, words[0])
	return p, nil
}

// splitAddress splits an argument at its colons, except those in brackets, as in [::1]:80, and in
// a path.
func splitAddress(arg string) (words []string) {
	for {
		if strings.HasPrefix(arg, "/") {
			return append(words, arg)
		}
		from := 0
		bracketed := strings.HasPrefix(arg, "[")
		if bracketed {
			from = max(0, strings.IndexByte(arg, ']'))
		}
		i := strings.IndexByte(arg[from:], ':')
		if i < 0 {
			return append(words, arg)
		}
		word := arg[:from+i]
		if bracketed {
			word = strings.TrimSuffix(word[1:], "]")
		}
		words = append(words, word)
		arg = arg[from+i+1:]
	}
}

func isPort(word string) bool {
	_, err := strconv.ParseUint(word, 10, 16)
	return err == nil
}

// forwardedJSON is a port in the output of forward --json.
type forwardedJSON struct {
	Listen  string `json:"listen"`  // local HOST:PORT
	Network string `json:"network"` // tcp or unix
	Address string `json:"address"` // of the destination
}

// forwardAll forwards all ports until ctx or the environment ends.
func forwardAll(ctx context.Context, env *client.Environment, out io.Writer, args []string, asJSON bool) error {
	for _, arg := range args {
		p, err := parsePorts(arg)
		if err != nil {
			return err
		}
		f, err := env.Forward(ctx, p.local, p.network, p.address)
		if err != nil {
			return err
		}
		defer f.Close()
		if asJSON {
			err = cli.EncodeJSON(out, forwardedJSON{f.Addr().String(), p.network, p.address}, "")
		} else {
			_, err = fmt.Fprintf(out, "%s leads to %s\n", f.Addr(), cli.Printable(p.address))
		}
		if err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return nil
	case <-env.Done():
		return env.Err()
	}
}

// showState reports changes of the connection.
func showState(out io.Writer, s client.State) {
	switch s.Kind {
	case client.Recovering:
		fmt.Fprintf(out, "the connection to the server is lost, and forward reconnects: %s\n", cli.Printable(s.Err.Error()))
	case client.Connected:
		fmt.Fprintln(out, "the connection to the server is back")
	}
}

// warnings is a slog.Handler that prints warnings for a person.
type warnings struct{ out io.Writer }

// Enabled implements slog.Handler.
func (w *warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle implements slog.Handler.
func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			text += ": " + a.Value.String()
			if err, ok := a.Value.Any().(error); ok && peer.IsConfinementError(err) {
				text += " (" + serve.AllowConfinedHint + ")"
			}
		}
		return true
	})
	_, err := fmt.Fprintln(w.out, cli.Printable(text))
	return err
}

// WithAttrs implements slog.Handler.
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler { return w }

// WithGroup implements slog.Handler.
func (w *warnings) WithGroup(string) slog.Handler { return w }
