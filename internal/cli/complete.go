package cli

import (
	"cmp"
	"context"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"execserver/client"
)

// completionTimeout bounds a completion by another machine.
const completionTimeout = 3 * time.Second

// CompletePaths completes paths of the machine.
func (m *Machine) CompletePaths(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	dir, begun := splitTyped(typed)
	var paths []string
	m.ask(false, func(ctx context.Context, env *client.Environment) {
		entries, _ := env.FS(dir).WithContext(ctx).ReadDir(".")
		paths = matching(entries, dir, begun)
	})
	return paths, PathDirective(paths)
}

// LocalPaths returns the completions of a path of this machine.
func LocalPaths(typed string) []string {
	dir, begun := splitTyped(typed)
	entries, _ := os.ReadDir(cmp.Or(dir, "."))
	return matching(entries, dir, begun)
}

// CompleteTarget completes the only TARGET of a command.
func (m *Machine) CompleteTarget(command *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return m.CompleteTargets(command, args, typed)
}

// CompleteTargets completes processes of the server, with their command lines as descriptions. It
// leaves out those that the command line has already.
func (m *Machine) CompleteTargets(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var targets []string
	m.ask(true, func(ctx context.Context, env *client.Environment) {
		l, err := List(ctx, env)
		if err != nil {
			return
		}
		for _, p := range l.Processes {
			if target := l.SessionLabel(p.Session) + "/" + Printable(p.ID); !slices.Contains(args, target) {
				targets = append(targets, cobra.CompletionWithDesc(target, CommandLine(p, 60)))
			}
		}
	})
	return targets, cobra.ShellCompDirectiveNoFileComp
}

// splitTyped splits a path into its directory, with the slash, and the beginning of a name.
func splitTyped(typed string) (dir, begun string) {
	i := strings.LastIndexByte(typed, '/') + 1
	return typed[:i], typed[i:]
}

// matching returns the paths of the entries of dir whose names begin with begun.
func matching(entries []fs.DirEntry, dir, begun string) (paths []string) {
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, begun) || begun == "" && name[0] == '.' || Printable(name) != name {
			continue
		}
		if entry.IsDir() {
			name += "/"
		}
		paths = append(paths, dir+name)
	}
	return paths
}

// PathDirective returns the directive for completed paths: no space follows a directory or the
// name of a machine.
func PathDirective(paths []string) cobra.ShellCompDirective {
	for _, path := range paths {
		if last := path[len(path)-1]; last == '/' || last == ':' {
			return cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
	}
	return cobra.ShellCompDirectiveNoFileComp
}

// ask connects to the machine for a completion. It ignores errors, because a completion cannot
// show them.
func (m *Machine) ask(noSession bool, question func(ctx context.Context, env *client.Environment)) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	env, err := m.Open(ctx, &client.Options{Name: "exec-server-completion", RecoveryTimeout: -1, NoSession: noSession})
	if err != nil {
		return
	}
	defer Leave(env)
	question(ctx, env)
}
