package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
)

// CatCommand returns the command cat.
func CatCommand() *cobra.Command {
	var m cli.Machine
	command := &cobra.Command{
		Use:        "cat [flags] PATH...",
		Short:      "Print files",
		GroupID:    cli.GroupWork,
		SuggestFor: []string{"type", "show"},
		Long: "cat prints files one after the other. Relative paths start in the directory of the server. The exit\n" +
			"code is 1 if a file could not be read.",
		Example: "  exec-server cat --on box /etc/os-release\n" +
			"  exec-server cat --on box core | gdb program -",
		ValidArgsFunction: m.CompletePaths,
		Args:              cobra.MatchAll(cli.NeedArgs("name the file to print"), cli.NeedPaths),
		RunE: func(command *cobra.Command, args []string) error {
			if err := m.Check(command); err != nil {
				return err
			}
			return m.Do("cat", func(ctx context.Context, env *client.Environment) error {
				return cli.Each(ctx, env, args, func(path string) error {
					return printFile(ctx, env, command.OutOrStdout(), path)
				})
			})
		},
	}
	f := command.Flags()
	m.AddFlags(f)
	return command
}

// printFile prints a file of the machine.
func printFile(ctx context.Context, env *client.Environment, out io.Writer, path string) error {
	file, err := env.FS(path).WithContext(ctx).Open(".")
	if errors.Is(err, fs.ErrNotExist) {
		return cli.SuggestMachine(path, pathError("read", path, err))
	}
	if err != nil {
		return pathError("read", path, err)
	}
	defer file.Close()
	_, err = io.Copy(out, file)
	if failed, ok := errors.AsType[*fs.PathError](err); err == nil || ok && failed.Path == os.Stdout.Name() {
		return err // of standard output
	}
	return pathError("read", path, err)
}
