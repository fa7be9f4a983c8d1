package admin

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

// WebCommand returns the command web.
func WebCommand() *cobra.Command {
	var m cli.Machine
	command := &cobra.Command{
		Use:        "web [flags]",
		Short:      "Print a link to the page of a server",
		GroupID:    cli.GroupLook,
		SuggestFor: []string{"page", "browser", "ui", "dashboard"},
		Long: "The server must have been started with --web. Its page shows the processes live, with their\n" +
			"terminals and recordings.\n\n" +
			"The link can be opened once, within a minute. The browser then has your rights for 12 hours,\n" +
			"or until it signs out. \"exec-fleet web\" prints a link to the page of a gateway.",
		Example: "  exec-server web --on box\n" +
			"  xdg-open \"$(exec-server web --url ws://localhost:8765)\"",
		Args: cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := m.Check(command); err != nil {
				return err
			}
			return m.Query("web", func(ctx context.Context, env *client.Environment) error {
				return printLink(ctx, &m, env, command.OutOrStdout())
			})
		},
	}
	f := command.Flags()
	m.AddFlags(f)
	return command
}

func printLink(ctx context.Context, m *cli.Machine, env *client.Environment, out io.Writer) error {
	path, life, err := env.WebLink(ctx)
	if _, unsupported := errors.AsType[*client.UnsupportedError](err); unsupported {
		return errors.New("this server has no page; start one that listens: exec-server serve --listen ws://127.0.0.1:8765 --web. For a machine of a fleet, use exec-fleet web")
	}
	if err != nil {
		return fmt.Errorf("cannot get a link to the page: %w", err)
	}
	at, err := serverURL(m)
	if err != nil {
		return err
	}
	return cli.PageLink(out, at, path, "", life)
}

// serverURL returns the URL of the server, or "" if it has none.
func serverURL(m *cli.Machine) (string, error) {
	if m.URL != "" {
		return m.URL, nil
	}
	entry, err := environments.Find(m.On)
	if err != nil {
		return "", err
	}
	return entry.URL, nil
}
