package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/client"
	"execserver/client/environments"
	"execserver/fleet/internal/fleet"
	"execserver/fleet/natstransport"
	"execserver/internal/cli"
	"execserver/internal/peer"
	"execserver/protocol"
)

// fleetAt says which gateway the commands ask.
type fleetAt struct{ gateway, tokenFile, serverUser string }

func (a *fleetAt) addFlags(f *pflag.FlagSet) {
	f.StringVar(&a.gateway, "gateway", "", "ask the gateway at this `URL`: ws://HOST:PORT or wss://HOST:PORT; default is $"+environments.GatewayVariable)
	f.StringVar(&a.tokenFile, "token-file", "", "read the bearer token from this `FILE`; default is $"+environments.GatewayTokenVariable+" for the gateway of $"+environments.GatewayVariable)
	cli.DefineServerUser(f, &a.serverUser)
}

// check completes the flags.
func (a *fleetAt) check(command *cobra.Command) error {
	named := "--gateway"
	if a.gateway == "" {
		gateway, tokenFile := environments.Gateway()
		a.gateway, a.tokenFile = gateway, cmp.Or(a.tokenFile, tokenFile)
		named = "$" + environments.GatewayVariable
	}
	if a.gateway == "" {
		return cli.NewUsageError(fmt.Errorf("name the gateway with --gateway ws://HOST:PORT or wss://HOST:PORT, or in $%s", environments.GatewayVariable), command)
	}
	gateway, err := environments.GatewayURL(a.gateway)
	if err != nil {
		return cli.NewUsageError(fmt.Errorf("%s %w", named, err), command)
	}
	a.gateway = gateway
	return nil
}

// machineURL returns the URL of a machine for clients.
func (a *fleetAt) machineURL(name string) string { return a.gateway + "/env/" + url.PathEscape(name) }

// fleetTimeout bounds one request to a gateway.
const fleetTimeout = 15 * time.Second

// maxFleetAnswer bounds the answer of a gateway: an entry is at most 16 KiB.
const maxFleetAnswer = 256 << 20

// ask sends a request to the gateway.
func (a *fleetAt) ask(ctx context.Context, method, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http"+strings.TrimPrefix(a.gateway, "ws")+path, nil)
	if err != nil {
		return nil, err
	}
	if a.tokenFile != "" {
		token, err := os.ReadFile(a.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("read the bearer token: %w", err)
		}
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	proxy, err := transport.Proxy(r)
	secret := a.tokenFile != "" && r.URL.Scheme == "http" || proxy != nil && proxy.User != nil
	if err == nil && secret && (proxy == nil || proxy.Scheme != "https") { // any program that listens there could read it
		transport.DialContext = func(_ context.Context, network, address string) (net.Conn, error) {
			return peer.DialServer(ctx, new(net.Dialer), network, address, a.serverUser)
		}
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return nil, a.failed(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxFleetAnswer))
	if err != nil {
		return nil, a.failed(err)
	}
	if answer.StatusCode/100 != 2 {
		return nil, &gatewayRefusal{answer.StatusCode, cli.Printable(strings.TrimSpace(string(text[:min(len(text), 1<<10)])))}
	}
	return text, nil
}

// failed says why the gateway does not answer, and what to do.
func (a *fleetAt) failed(err error) error {
	advice := cli.DialAdvice(&client.DialError{URL: a.machineURL("NAME"), Err: err})
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err // without the address, which the caller knows
	}
	if advice != "" {
		return fmt.Errorf("cannot ask the gateway %s: %w; %s", a.gateway, err, advice)
	}
	return fmt.Errorf("cannot ask the gateway %s: %w", a.gateway, err)
}

// gatewayRefusal is the error of a gateway that answers with another status than success.
type gatewayRefusal struct {
	status int
	text   string
}

// Error implements error.
func (e *gatewayRefusal) Error() string {
	text := fmt.Sprintf("the gateway answers %d %s", e.status, http.StatusText(e.status))
	if e.text != "" && !strings.HasPrefix(e.text, "<") { // a web page is no help in an error
		text += ": " + e.text
	}
	if advice := e.advice(); advice != "" {
		text += "; " + advice
	}
	return text
}

func (e *gatewayRefusal) advice() string {
	switch {
	case e.status == http.StatusUnauthorized:
		return "give the gateway's token with --token-file"
	case cli.LacksMachine(e.text):
		return cli.ToList
	case strings.Contains(e.text, cli.SaysTLS):
		return "use wss:// for a gateway with TLS"
	case e.status < 500 && e.status != http.StatusForbidden && e.status != http.StatusTooManyRequests:
		return "is this the URL of a gateway?"
	}
	return ""
}

// list returns the machines with all labels of a selection.
func (a *fleetAt) list(ctx context.Context, selection []string) ([]fleet.Member, error) {
	path := "/fleet"
	if len(selection) > 0 {
		path += "?" + url.Values{"label": selection}.Encode()
	}
	text, err := a.ask(ctx, http.MethodGet, path)
	if err != nil {
		return nil, err
	}
	var machines []fleet.Member
	if err := json.Unmarshal(text, &machines); err != nil {
		return nil, errors.New("this is no gateway: its list of machines is not understood")
	}
	return machines, nil
}

// subcommand completes a command that asks a gateway: with a context that signals end.
func subcommand(command *cobra.Command, at *fleetAt, run func(ctx context.Context, args []string) error) *cobra.Command {
	command.GroupID = groupLook
	command.RunE = func(command *cobra.Command, args []string) error {
		if err := at.check(command); err != nil {
			return err
		}
		ctx, stop := cli.UntilSignal()
		defer stop()
		err := run(ctx, args)
		if s, signaled := errors.AsType[cli.SignalError](context.Cause(ctx)); signaled {
			return cli.ExitCode(cli.Signaled + int(s.Signal))
		}
		return err
	}
	at.addFlags(command.Flags())
	return command
}

func newListCommand() *cobra.Command {
	var at fleetAt
	var labels []string
	var asJSON bool
	command := &cobra.Command{
		Use: "ls [flags]", Short: "List machines",
		Long:    "ls lists the machines that have joined, and that your token may use.",
		Example: "  exec-fleet ls --gateway wss://gateway:8765 --token-file ~/.token --label gpu=h100",
		Args:    cli.NoArgs,
	}
	f := command.Flags()
	f.StringArrayVar(&labels, "label", nil, "list machines with this label, `KEY=VALUE`, or KEY for any value; may be repeated")
	f.BoolVar(&asJSON, "json", false, "print a JSON array with one object for each machine")
	return subcommand(command, &at, func(ctx context.Context, _ []string) error {
		machines, err := at.list(ctx, labels)
		if err != nil {
			return err
		}
		if asJSON {
			return cli.JSON(command.OutOrStdout(), machines)
		}
		rows := [][]string{{"MACHINE", "STATE", "SESSIONS", "RUNNING", "SYSTEM", "VERSION", "JOINED", "LABELS"}}
		for _, m := range machines {
			rows = append(rows, []string{
				cli.Printable(m.Name), stateOfMachine(m), fmt.Sprintf("%d of %d", m.Load.Sessions, m.Load.Capacity), fmt.Sprint(m.Load.Processes),
				cli.Printable(m.System), cli.Printable(m.Version), cli.ShortDuration(time.Since(m.Joined)), cli.Printable(strings.Join(m.LabelTexts(), " ")),
			})
		}
		return cli.Table(command.OutOrStdout(), rows)
	})
}

func stateOfMachine(m fleet.Member) string {
	if m.Load.Draining {
		return "draining"
	}
	return "serving"
}

func newInfoCommand() *cobra.Command {
	var at fleetAt
	command := &cobra.Command{
		Use: "info NAME", Short: "Print the entry of a machine, as JSON",
		Long:    "info prints the entry of a machine in the fleet. \"exec-server info\" asks the machine itself.",
		Example: "  exec-fleet info --gateway wss://gateway:8765 --token-file ~/.token box-7",
		Args:    oneMachine,
	}
	return subcommand(command, &at, func(ctx context.Context, args []string) error {
		machines, err := at.list(ctx, nil)
		if err != nil {
			return err
		}
		for _, m := range machines {
			if m.Name == args[0] {
				return cli.JSON(command.OutOrStdout(), m)
			}
		}
		return fmt.Errorf("there is no machine %s; %s", cli.Printable(args[0]), cli.ToList)
	})
}

// oneMachine checks that there is one name.
func oneMachine(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cli.NewUsageError(errors.New("name the machine; "+cli.ToList), command)
	}
	return cli.NoArgs(command, args[1:])
}

// newChangeCommand returns a subcommand that changes each machine that it gets. done is
// what it prints behind the name of each, if anything.
func newChangeCommand(name, short, long, method, suffix, done string) *cobra.Command {
	var at fleetAt
	command := &cobra.Command{
		Use: name + " NAME...", Short: short, Long: long + " Your token needs the scope full.",
		Example: "  exec-fleet " + name + " --gateway wss://gateway:8765 --token-file ~/.token box-7",
		Args:    cli.NeedArgs("name the machines"),
	}
	return subcommand(command, &at, func(ctx context.Context, args []string) error {
		failed := 0
		for _, machine := range args {
			if _, err := at.ask(ctx, method, "/fleet/"+url.PathEscape(machine)+suffix); ctx.Err() != nil {
				return err
			} else if err != nil {
				failed++
				fmt.Fprintf(os.Stderr, "Error: cannot %s %s: %s\n", name, cli.Printable(machine), cli.Printable(err.Error()))
			} else if done != "" {
				fmt.Fprintf(command.OutOrStdout(), "%s %s\n", cli.Printable(machine), done)
			}
		}
		if failed > 0 {
			return cli.ExitCode(1)
		}
		return nil
	})
}

func newTokenCommand() *cobra.Command {
	var at fleetAt
	var revoke bool
	command := &cobra.Command{
		Use: "token NAME [flags]", Short: "Make a token for a machine to join",
		Long: "token prints a token with which a machine can join under one name. Store it on the machine, in a\n" +
			"file with mode 0600. The gateway does not keep the token, so it cannot be printed again. A new token\n" +
			"for a name replaces the previous one.\n\n" +
			"--revoke revokes the token of a name. The machine is disconnected, and keeps its sessions until they\n" +
			"end.\n\n" +
			"Your own token needs the scope full. A gateway with --machines or --nats makes no tokens.",
		Example: "  (umask 077; exec-fleet token --gateway wss://gateway:8765 --token-file ~/.token box-7 >box-7.token)\n" +
			"  exec-fleet token --gateway wss://gateway:8765 --token-file ~/.token --revoke box-7",
		Args: func(command *cobra.Command, args []string) error {
			if len(args) > 0 && !natstransport.ValidName(args[0]) {
				return cli.NewUsageError(fmt.Errorf("invalid name %q; expected 1 to 64 of the characters A-Z a-z 0-9 _ -", args[0]), command)
			}
			return cobra.MatchAll(cli.NeedArgs("name the machine that is to join"), oneMachine)(command, args)
		},
	}
	f := command.Flags()
	f.BoolVar(&revoke, "revoke", false, "revoke the token of this name")
	return subcommand(command, &at, func(ctx context.Context, args []string) error {
		path := "/fleet/" + url.PathEscape(args[0]) + "/token"
		if revoke {
			if _, err := at.ask(ctx, http.MethodDelete, path); err != nil {
				return fmt.Errorf("cannot revoke the token of %s: %w", cli.Printable(args[0]), err)
			}
			fmt.Fprintf(command.OutOrStdout(), "the token of %s is revoked\n", cli.Printable(args[0]))
			return nil
		}
		token, err := at.ask(ctx, http.MethodPost, path)
		if err != nil {
			return fmt.Errorf("cannot make a token for %s: %w", cli.Printable(args[0]), err)
		}
		fmt.Fprintln(command.OutOrStdout(), cli.Printable(strings.TrimSpace(string(token))))
		return nil
	})
}

func newWebCommand() *cobra.Command {
	var at fleetAt
	command := &cobra.Command{
		Use: "web [NAME]", Short: "Print a link to the page of a gateway",
		Long: "The gateway must have been started with --web. Its page shows the machines that your token may use,\n" +
			"and their processes. With the name of a machine, the link leads to that machine.\n\n" +
			"The link works once, within a minute, in any browser. The browser then has the rights of your token\n" +
			"for 12 hours, or until it signs out.",
		Example: "  xdg-open \"$(exec-fleet web --gateway wss://gateway:8765 --token-file ~/.token)\"",
		Args: func(command *cobra.Command, args []string) error {
			return cli.NoArgs(command, args[min(1, len(args)):])
		},
	}
	return subcommand(command, &at, func(ctx context.Context, args []string) error {
		query := ""
		if len(args) > 0 {
			query = url.Values{"machine": args}.Encode()
		}
		return at.printLink(ctx, query, command.OutOrStdout())
	})
}

// printLink prints a link to the page of the gateway, with a query.
func (a *fleetAt) printLink(ctx context.Context, query string, out io.Writer) error {
	text, err := a.ask(ctx, http.MethodPost, "/web/link")
	if refusal, ok := errors.AsType[*gatewayRefusal](err); ok && refusal.status == http.StatusNotFound {
		return errors.New("this gateway has no page; start it with --web")
	}
	if err != nil {
		return fmt.Errorf("cannot get a link to the page: %w", err)
	}
	var link protocol.WebLinkResult
	if err := json.Unmarshal(text, &link); err != nil {
		return errors.New("this is no gateway: its link to the page is not understood")
	}
	return cli.PageLink(out, a.gateway, link.Path, query, time.Duration(link.LifeMs)*time.Millisecond)
}
