package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
)

// WatchCommand returns the command watch.
func WatchCommand() *cobra.Command {
	var m cli.Machine
	var asJSON bool
	command := &cobra.Command{
		Use:     "watch [flags] [DIRECTORY]",
		Short:   "Print what changes in a directory",
		GroupID: cli.GroupWork,
		Long: "watch prints the changes in a directory and below it until it is interrupted. Each line has created,\n" +
			"modified, removed or overflow, and the path. After overflow, changes below that path may be missing.\n\n" +
			"Without a DIRECTORY it watches the directory of the server. If the connection to a server that listens\n" +
			"breaks, watch continues with the changes made meanwhile.",
		Example: "  exec-server watch --on box src\n" +
			"  exec-server watch --on box src | while read -r change; do make; done",
		ValidArgsFunction: m.CompletePaths,
		Args: func(command *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.NoArgs(command, args[1:])
			}
			return cli.NeedPaths(command, args)
		},
		RunE: func(command *cobra.Command, args []string) error {
			if err := m.Check(command); err != nil {
				return err
			}
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			return m.Do("watch", func(ctx context.Context, env *client.Environment) error {
				return watchDirectory(ctx, env, dir, command.OutOrStdout(), asJSON)
			})
		},
	}
	f := command.Flags()
	f.BoolVar(&asJSON, "json", false, "print a JSON object per line; the first has the kind \"began\"")
	m.AddFlags(f)
	return command
}

// changeJSON is a change in the output of watch --json. The names are those of the
// protocol.
type changeJSON struct {
	Kind      client.FileEventKind `json:"kind"`
	Path      string               `json:"path,omitempty"`
	Unwatched []string             `json:"unwatched,omitempty"`
}

func watchDirectory(ctx context.Context, env *client.Environment, dir string, out io.Writer, asJSON bool) error {
	for event, err := range env.FS(dir).WithContext(ctx).Watch(".") {
		if errors.Is(err, errors.ErrUnsupported) {
			return fmt.Errorf("%w; run a command on the machine instead, such as inotifywait", pathError("watch", dir, err))
		} else if errors.Is(err, fs.ErrNotExist) {
			return cli.SuggestMachine(dir, pathError("watch", dir, err))
		} else if err != nil {
			return pathError("watch", dir, err)
		}
		change := changeJSON{Kind: event.Kind}
		if event.Name != "" {
			change.Path = path.Join(dir, event.Name)
		}
		for _, name := range event.Unwatched {
			change.Unwatched = append(change.Unwatched, path.Join(dir, name))
		}
		if err := change.print(out, asJSON); err != nil {
			return err
		}
	}
	return nil
}

func (c changeJSON) print(out io.Writer, asJSON bool) error {
	if asJSON {
		return cli.EncodeJSON(out, c, "")
	}
	if c.Kind == client.WatchBegan {
		return nil
	}
	paths := c.Unwatched
	if c.Path != "" {
		paths = []string{c.Path}
	}
	_, err := fmt.Fprintf(out, "%-8s  %s\n", cli.Printable(string(c.Kind)), cli.Printable(strings.Join(paths, " ")))
	return err
}
