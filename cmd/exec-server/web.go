package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/client/environments"
	"execserver/internal/cli"
)

func newWebCommand() *cobra.Command {
	var w where
	command := &cobra.Command{
		Use:        "web [flags]",
		Short:      "Print a link to the page of a server",
		GroupID:    cli.GroupLook,
		SuggestFor: []string{"page", "browser", "ui", "dashboard"},
		Long: "web prints a link to the page of a server that was started with --web: what runs there, live, with\n" +
			"the terminals and recordings. The link works once, within a minute, for whoever opens it. The browser\n" +
			"can then do what you can do here, for 12 hours or until it signs out. For the page of a gateway there\n" +
			"is \"exec-fleet web\".",
		Example: "  exec-server web --on box\n" +
			"  xdg-open \"$(exec-server web --url ws://localhost:8765)\"",
		Args: cli.NoArgs,
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
		return errors.New("this server has no page; start it with --web. For a machine of a fleet, exec-fleet web prints a link to the page of the gateway")
	}
	if err != nil {
		return fmt.Errorf("cannot get a link to the page: %w", err)
	}
	at, err := w.address()
	if err != nil {
		return err
	}
	return cli.PageLink(out, at, path, "", life)
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
