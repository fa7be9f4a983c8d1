package main

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

func newCatCommand() *cobra.Command {
	var w where
	command := &cobra.Command{
		Use:        "cat [flags] PATH...",
		Short:      "Print files",
		GroupID:    cli.GroupWork,
		SuggestFor: []string{"type", "show"},
		Long: "cat prints the content of files, one after the other. Relative paths begin in the directory in\n" +
			"which the server was started. The exit code is 1 if a file could not be read.",
		Example: "  exec-server cat --on box /etc/os-release\n" +
			"  exec-server cat --on box core | gdb program -",
		ValidArgsFunction: w.completePaths,
		Args:              cobra.MatchAll(cli.NeedArgs("name the file to print"), cli.NeedPaths),
		RunE: func(command *cobra.Command, args []string) error {
			if err := w.check(command); err != nil {
				return err
			}
			return w.do("cat", func(ctx context.Context, env *client.Environment) error {
				return each(ctx, env, args, func(path string) error {
					return printFile(ctx, env, command.OutOrStdout(), path)
				})
			})
		},
	}
	f := command.Flags()
	f.SortFlags = false
	w.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
	return command
}

// printFile copies a file of the machine to out.
func printFile(ctx context.Context, env *client.Environment, out io.Writer, path string) error {
	file, err := env.FS(path).WithContext(ctx).Open(".")
	if errors.Is(err, fs.ErrNotExist) {
		return meantOn(path, pathError("read", path, err))
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
