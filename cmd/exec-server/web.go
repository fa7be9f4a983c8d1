//go:build !core

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/client"
	"execserver/client/environments"
	"execserver/internal/web"
	"execserver/server"
)

// webFlags are the flags of the server about its page. The build tag core leaves them out.
type webFlags struct{ on bool }

func (o *webFlags) define(f *pflag.FlagSet) {
	f.BoolVar(&o.on, "web", false, "serve a page for browsers at /web of the WebSocket listener; exec-server web prints a link to it")
}

func (o *webFlags) check(main listenAddress) error {
	if o.on && main.kind != listenWebSocket {
		return fmt.Errorf("--web requires a WebSocket listener, not %s", main.kind)
	}
	return nil
}

func (o *webFlags) apply(to *server.Options) {
	if o.on {
		to.Internal.Page = web.New()
	}
}

// webCommands returns the subcommands about the page.
func webCommands() []*cobra.Command { return []*cobra.Command{newWebCommand()} }

func newWebCommand() *cobra.Command {
	var w where
	command := &cobra.Command{
		Use:        "web [flags]",
		Short:      "Print a link to the page of a server",
		GroupID:    groupLook,
		SuggestFor: []string{"page", "browser", "ui", "dashboard"},
		Long: "web prints a link to the page of a server that was started with --web: what runs there, live, with\n" +
			"the terminals and recordings. The link works once, within a minute, for whoever opens it. The browser\n" +
			"can then do what you can do here, for 12 hours or until it signs out. For the page of a gateway there\n" +
			"is \"exec-server fleet web\".",
		Example: "  exec-server web --on box\n" +
			"  xdg-open \"$(exec-server web --url ws://localhost:8765)\"",
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := w.check(command); err != nil {
				return err
			}
			return w.look("web", func(ctx context.Context, env *client.Environment) error {
				return w.printLink(ctx, env, command.OutOrStdout())
			})
		},
	}
	f := command.Flags()
	f.SortFlags = false
	w.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
	return command
}

func (w *where) printLink(ctx context.Context, env *client.Environment, out io.Writer) error {
	path, life, err := env.WebLink(ctx)
	if _, unsupported := errors.AsType[*client.UnsupportedError](err); unsupported {
		return errors.New("this server has no page; start it with --web. For a machine of a fleet, exec-server fleet web prints a link to the page of the gateway")
	}
	if err != nil {
		return fmt.Errorf("cannot get a link to the page: %w", err)
	}
	at, err := w.address()
	if err != nil {
		return err
	}
	return printLink(out, at, path, "", life)
}

// address returns the URL of the server.
func (w *where) address() (string, error) {
	if w.url != "" {
		return w.url, nil
	}
	entry, err := environments.Find(w.on)
	if err != nil {
		return "", err
	}
	return entry.URL, nil
}

// printLink prints a link to a path, with a query, that a server at a URL has answered.
func printLink(out io.Writer, at, path, query string, life time.Duration) error {
	page, err := url.Parse(path)
	if err != nil || page.Host != "" || page.Scheme != "" {
		return fmt.Errorf("the server answers with %q, which is no path", path)
	}
	page.RawQuery = query
	link, err := pageURL(at, page)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, link); err != nil {
		return err
	}
	if _, shows := onTerminal(out); shows {
		fmt.Fprintf(os.Stderr, "The link works once, within %s.\n", spell(life.Round(time.Second)))
	}
	return nil
}

// pageURL returns the URL of a page of the server at a URL, for a browser on this machine.
func pageURL(at string, page *url.URL) (string, error) {
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "ws" && u.Scheme != "wss" {
		return "", errors.New("the page needs the address of the server, and this way to it has none; use --url ws://HOST:PORT, " +
			"with exec-server forward to the port if it is not reachable")
	}
	u.Scheme = map[string]string{"ws": "http", "wss": "https"}[u.Scheme]
	u.User, u.RawQuery = nil, page.RawQuery
	u.Path, u.RawPath, u.Fragment = strings.TrimSuffix(u.Path, "/")+page.Path, "", page.Fragment // a proxy may serve it below a path
	return u.String(), nil
}
