package main

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

// forwardTimeout is how long forward tries to reach a server again: until somebody ends
// it.
const forwardTimeout = 10 * 365 * 24 * time.Hour

func newForwardCommand() *cobra.Command {
	var w where
	var asJSON, confined bool
	command := &cobra.Command{
		Use:        "forward [flags] [LOCAL:]ADDRESS...",
		Short:      "Make ports of a machine ports of this one",
		GroupID:    cli.GroupWork,
		SuggestFor: []string{"port-forward", "tunnel"},
		Long: "forward listens on this machine, and continues each connection from the other machine, as ssh -L\n" +
			"does. ADDRESS is where the connections lead, as seen from there: HOST:PORT, PORT alone for a port of\n" +
			"that machine, or the path of a unix socket. LOCAL is the port here, by default the same one, or\n" +
			"HOST:PORT; port 0 picks a free one. Every user of this machine can connect to it; without a HOST\n" +
			"nobody else can.\n\n" +
			"forward prints where it listens, and serves until a signal ends it. When the connection to the\n" +
			"server breaks, it connects again; the connections that it carried end.",
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
			if err := w.check(command); err != nil {
				return err
			}
			opts := &client.Options{
				Name: "exec-server-forward", RecoveryTimeout: forwardTimeout, AllowConfinedPeers: confined,
				OnState: func(s client.State) { tellState(command.ErrOrStderr(), s) },
				Log:     slog.New(&warnings{command.ErrOrStderr()}),
			}
			return w.doWith(opts, func(ctx context.Context, env *client.Environment) error {
				return forwardAll(ctx, env, command.OutOrStdout(), args, asJSON)
			})
		},
	}
	f := command.Flags()
	f.SortFlags = false
	f.BoolVar(&asJSON, "json", false, "print a JSON object a line that says where it listens, for each port")
	serve.DefineAllowConfined(f, &confined)
	w.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
	return command
}

// ports are what one argument of forward says.
type ports struct {
	local            string // HOST:PORT
	network, address string // the far end
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

// splitAddress splits an argument at its colons, except those in brackets, as in
// [::1]:80, and those of a path.
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
	Listen  string `json:"listen"`  // HOST:PORT here
	Network string `json:"network"` // tcp or unix
	Address string `json:"address"` // there
}

// forwardAll forwards all ports until ctx or the environment ends.
func forwardAll(ctx context.Context, env *client.Environment, out io.Writer, args []string, asJSON bool) error {
	for _, arg := range args {
		p, err := parsePorts(arg)
		if err != nil {
			return err
		}
		f, err := env.Listen(ctx, p.local, p.network, p.address)
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

// tellState tells a person about the connection.
func tellState(out io.Writer, s client.State) {
	switch s.Kind {
	case client.Recovering:
		fmt.Fprintf(out, "the connection to the server is lost, and forward tries to make it again: %s\n", cli.Printable(s.Err.Error()))
	case client.Connected:
		fmt.Fprintln(out, "the connection to the server stands again")
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
			if err, ok := a.Value.Any().(error); ok && peer.IsAboutConfinement(err) {
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
