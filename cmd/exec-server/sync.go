package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"execserver/client"
)

// syncOptions are the flags of push and pull.
type syncOptions struct {
	where        where
	files        string
	mine, theirs bool
	remove       bool
	dry, quiet   bool
}

const syncHelp = "DIR is a directory of this machine, by default the working directory. It has the same path on the\n" +
	"other machine, or REMOTE with DIR=REMOTE, which may begin with ~/.\n\n" +
	"A record in ~/.local/state/exec-server says how both sides were after the last push or pull. A file\n" +
	"that has changed on both sides since is a conflict: it stays as it is on both, is listed, and makes\n" +
	"the exit code 3, unless --mine or --theirs decides. A removed file is listed, and removed on the other\n" +
	"side only with --delete. With --files git, files that git ignores are left out; .git comes along.\n" +
	"Empty directories and owners do not. The exit code is 1 if something was not copied."

func newPushCommand() *cobra.Command {
	var o syncOptions
	return o.command(true, &cobra.Command{
		Use:     "push [flags] [DIR[=REMOTE]]",
		Short:   "Copy what has changed in a directory here to a machine",
		GroupID: groupWork,
		Long:    "push copies what has changed in a directory of this machine to another machine.\n\n" + syncHelp,
		Example: "  exec-server push --on box\n" +
			"  exec-server push --on box --files git ~/project=~/project",
	})
}

func newPullCommand() *cobra.Command {
	var o syncOptions
	return o.command(false, &cobra.Command{
		Use:     "pull [flags] [DIR[=REMOTE]]",
		Short:   "Copy what has changed in a directory there to this machine",
		GroupID: groupWork,
		Long:    "pull copies what has changed in a directory of another machine to this machine.\n\n" + syncHelp,
		Example: "  exec-server pull --on box -n\n" +
			"  exec-server pull --on box --theirs",
	})
}

// command completes a subcommand.
func (o *syncOptions) command(push bool, command *cobra.Command) *cobra.Command {
	command.Args = func(command *cobra.Command, args []string) error {
		if len(args) > 1 {
			return noArgs(command, args[1:])
		}
		return needPaths(command, args)
	}
	command.RunE = func(command *cobra.Command, args []string) error {
		if err := o.where.check(command); err != nil {
			return err
		}
		if err := checkFiles(o.files); command.Flags().Changed("files") && err != nil {
			return &usageError{err, command}
		}
		if o.mine && o.theirs {
			return &usageError{errors.New("--mine and --theirs exclude each other"), command}
		}
		r := &syncRun{
			push: push, files: o.files, remove: o.remove, dry: o.dry, quiet: o.quiet, out: os.Stdout,
		}
		r.decide = o.decision(push)
		dir := "."
		if len(args) > 0 {
			dir = args[0]
		}
		if err := os.Setenv(noPushVariable, "1"); err != nil {
			return err
		}
		return o.where.do(command.Name(), func(ctx context.Context, env *client.Environment) error {
			r.env = env
			var err error
			if r.local, r.there, err = syncDirs(dir, env.Info()); err != nil {
				return err
			}
			return r.run(ctx)
		})
	}
	f := command.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.dry, "dry-run", "n", false, "list what would be done, and do nothing")
	f.StringVar(&o.files, "files", "", "copy these files: `all`, or git for those that git does not ignore; the default is what the last push or pull did, and all for the first one")
	f.BoolVar(&o.remove, "delete", false, "remove what was removed on the other side")
	f.BoolVar(&o.mine, "mine", false, "decide conflicts for the files here")
	f.BoolVar(&o.theirs, "theirs", false, "decide conflicts for the files there")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "list conflicts only")
	o.where.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
	return command
}

// decision returns what decides conflicts.
func (o *syncOptions) decision(push bool) int {
	switch {
	case o.mine && push, o.theirs && !push:
		return conflictsFrom
	case o.mine, o.theirs:
		return conflictsTo
	}
	return conflictsStay
}

// checkFiles checks the value of --files, or of --push of connect.
func checkFiles(files string) error {
	if files != filesAll && files != filesGit {
		return fmt.Errorf("%q does not say which files to copy; expected %s or %s", files, filesAll, filesGit)
	}
	return nil
}

// syncDirs understands DIR or DIR=REMOTE.
func syncDirs(text string, info *client.Info) (local, there string, err error) {
	local, there, mapped := strings.Cut(text, "=")
	if local, err = filepath.Abs(local); err != nil {
		return "", "", err
	}
	if !mapped {
		return local, local, nil
	}
	if there == "" {
		return "", "", fmt.Errorf("%q names no directory after the =", text)
	}
	if there == "~" || strings.HasPrefix(there, "~/") {
		if info.HomeDir == "" {
			return "", "", errors.New("the server does not say which its home directory is; write it out")
		}
		there = path.Join(info.HomeDir, there[1:])
	}
	return local, there, nil
}
