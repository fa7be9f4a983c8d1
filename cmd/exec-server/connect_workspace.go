package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"execserver/client"
	"execserver/transport"
)

// connectWorkspaces are the flags of connect for directories that the client names.
type connectWorkspaces struct {
	list []string // DIR or DIR=REMOTE
	push string   // filesAll, filesGit or ""
	dirs []string // of list, absolute
}

func (w *connectWorkspaces) define(f *pflag.FlagSet) {
	f.StringArrayVar(&w.list, "workspace", nil, "make the directory `DIR` of this machine there, with the same path, or show REMOTE there at this path with DIR=REMOTE; REMOTE may begin with ~/; may be repeated")
	f.StringVar(&w.push, "push", "", "first copy the workspaces there as \"exec-server push\" does: `all` files, which is the default, or git for those that git does not ignore")
	f.Lookup("push").NoOptDefVal = filesAll
}

// complete checks the flags, and returns those of the server.
func (w *connectWorkspaces) complete(f *pflag.FlagSet) (serve []string, err error) {
	if f.Changed("push") {
		if err := checkFiles(w.push); err != nil {
			return nil, invalidValue("push", w.push, "expected all or git")
		}
		if len(w.list) == 0 {
			return nil, errors.New("--push needs --workspace")
		}
	}
	for _, text := range w.list {
		dir, remote, mapped := strings.Cut(text, "=")
		if dir == "" || mapped && remote == "" {
			return nil, invalidValue("workspace", text, "expected DIR or DIR=REMOTE")
		}
		if dir, err = filepath.Abs(dir); err != nil {
			return nil, err
		}
		w.dirs = append(w.dirs, dir)
		flag := "--workspace=" + dir
		if mapped {
			flag += "=" + remote
		}
		serve = append(serve, flag)
	}
	return serve, nil
}

// noPushVariable keeps connect from pushing when push or pull starts it, which do that
// themselves, or only look.
const noPushVariable = "EXEC_SERVER_NO_PUSH"

// pushWorkspaces copies the workspaces of --push there, over a connection of its own. It
// tells on standard error what it does; standard output belongs to the client. Conflicts
// stay as they are, and are no error.
func (c *connecting) pushWorkspaces(ctx context.Context) error {
	if _, other := os.LookupEnv(noPushVariable); other || c.workspaces.push == "" {
		return nil
	}
	session, err := c.start(ctx)
	if err != nil {
		return err
	}
	end := func() error {
		session.End()
		return nil
	}
	env, err := client.New(ctx, transport.NewLines("stdio", session, session, end, 0), &client.Options{Name: "exec-server-push"})
	if err != nil {
		session.End()
		return fmt.Errorf("push the workspaces: %w", err)
	}
	defer leave(env)
	for _, dir := range c.workspaces.dirs {
		r := &syncRun{env: env, push: true, local: dir, there: dir, files: c.workspaces.push, out: os.Stderr, quiet: true}
		err := r.run(ctx)
		switch code, ok := errors.AsType[exitCode](err); {
		case ok && code == exitConflicts:
			fmt.Fprintln(os.Stderr, "exec-server push and exec-server pull decide conflicts, with --mine or --theirs")
		case ok:
			return fmt.Errorf("not all of %s was pushed", printable(dir))
		case err != nil:
			return fmt.Errorf("push %s: %w", printable(dir), err)
		}
	}
	return nil
}
