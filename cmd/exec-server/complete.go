package main

import (
	"cmp"
	"context"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/client/environments"
	"execserver/internal/cli"
)

// completionTimeout bounds how long a person waits for a completion from another machine.
const completionTimeout = 3 * time.Second

// completePaths completes paths of the machine.
func (w *where) completePaths(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	dir, begun := splitTyped(typed)
	var paths []string
	w.ask(false, func(ctx context.Context, env *client.Environment) {
		entries, _ := env.FS(dir).WithContext(ctx).ReadDir(".")
		paths = matching(entries, dir, begun)
	})
	return paths, directiveFor(paths)
}

// completePlaces completes an argument of cp: a path of this machine, the name of another
// one, or a path there.
func (o *copyOptions) completePlaces(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if p := placeOf(typed); p.far {
		w := o.where
		if p.name != "" {
			w = where{on: p.name}
		}
		paths, directive := w.completePaths(nil, nil, p.path)
		for i, path := range paths {
			paths[i] = p.name + ":" + path
		}
		return paths, directive
	}
	dir, begun := splitTyped(typed)
	entries, _ := os.ReadDir(cmp.Or(dir, "."))
	places := matching(entries, dir, begun)
	names, _, _ := environments.Names()
	for _, name := range names {
		if dir == "" && strings.HasPrefix(name, begun) && environments.IsName(name) { // local: is no machine for cp
			places = append(places, name+":")
		}
	}
	return places, directiveFor(places)
}

// splitTyped splits a path into its directory, with the slash, and the beginning of a name.
func splitTyped(typed string) (dir, begun string) {
	i := strings.LastIndexByte(typed, '/') + 1
	return typed[:i], typed[i:]
}

// matching returns the paths of the entries of dir that a person may go on to type.
func matching(entries []fs.DirEntry, dir, begun string) (paths []string) {
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, begun) || begun == "" && name[0] == '.' || cli.Printable(name) != name {
			continue
		}
		if entry.IsDir() {
			name += "/"
		}
		paths = append(paths, dir+name)
	}
	return paths
}

// directiveFor lets a person go on after a directory, or the name of a machine.
func directiveFor(paths []string) cobra.ShellCompDirective {
	for _, path := range paths {
		if last := path[len(path)-1]; last == '/' || last == ':' {
			return cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
	}
	return cobra.ShellCompDirectiveNoFileComp
}

// ask connects to the machine for a completion. If that fails, there is nothing to offer,
// and no place to say so.
func (w *where) ask(noSession bool, question func(ctx context.Context, env *client.Environment)) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	env, err := w.open(ctx, &client.Options{Name: "exec-server-completion", RecoveryTimeout: -1, NoSession: noSession})
	if err != nil {
		return
	}
	defer cli.Leave(env)
	question(ctx, env)
}
