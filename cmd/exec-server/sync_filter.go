package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"strings"
)

// Which files push and pull copy.
const (
	filesAll = "all"
	filesGit = "git" // those that git does not ignore, and .git
)

// syncFilter chooses files. The zero value chooses all.
type syncFilter struct {
	git  bool
	dir  string          // of the local files
	made map[string]bool // local files that git lists, and the directories above them
	base map[string]fileState
	far  bool // it is for the other machine, where there may be more files
}

// newSyncFilter returns the filter for the files of dir. base has the files that were
// copied before.
func newSyncFilter(ctx context.Context, files, dir string, base map[string]fileState) (*syncFilter, error) {
	f := &syncFilter{git: files == filesGit, dir: dir, made: make(map[string]bool), base: base}
	if !f.git {
		return f, nil
	}
	listed, err := f.run(ctx, nil, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	if err != nil {
		return nil, err
	}
	for name := range base {
		listed = append(listed, name) // removed ones concern this, too
	}
	for _, name := range listed {
		f.add(strings.TrimSuffix(name, "/"))
	}
	return f, nil
}

// add chooses a file, whatever git says.
func (f *syncFilter) add(name string) {
	for ; name != "." && !f.made[name]; name = path.Dir(name) {
		f.made[name] = true
	}
}

// there returns the filter for the other machine.
func (f *syncFilter) there() *syncFilter {
	far := *f
	far.far = true
	return &far
}

// keep returns those of the names that are chosen. Names of directories end in a slash.
func (f *syncFilter) keep(ctx context.Context, names []string) (kept []string, err error) {
	if !f.git {
		return names, nil
	}
	var unknown []string
	for _, name := range names {
		switch plain := strings.TrimSuffix(name, "/"); {
		case f.made[plain], plain == ".git", strings.HasPrefix(plain, ".git/"):
			kept = append(kept, name)
		default:
			unknown = append(unknown, name)
		}
	}
	if !f.far || len(unknown) == 0 {
		return kept, nil
	}
	ignored := make(map[string]bool)
	list, err := f.run(ctx, unknown, "check-ignore", "-z", "--stdin")
	if err != nil {
		return nil, err
	}
	for _, name := range list {
		ignored[name] = true
	}
	for _, name := range unknown {
		if !ignored[name] {
			kept = append(kept, name)
		}
	}
	return kept, nil
}

// run runs git on the local files. It writes names to its input, and returns those that it
// prints.
func (f *syncFilter) run(ctx context.Context, names []string, args ...string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", f.dir}, args...)...)
	var trouble bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(strings.Join(names, "\x00")), &trouble
	out, err := cmd.Output()
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, errors.New("there is no git on this machine, which knows what to leave out; install it, or copy all files")
	case exited && exit.ExitCode() == 1 && args[0] == "check-ignore": // nothing is ignored
	case err != nil:
		return nil, fmt.Errorf("ask git about the files in %s: %w: %s; to copy all files, do not ask for those of git",
			f.dir, err, strings.TrimSpace(trouble.String()))
	}
	text := strings.TrimSuffix(string(out), "\x00")
	if text == "" {
		return nil, nil
	}
	return strings.Split(text, "\x00"), nil
}
