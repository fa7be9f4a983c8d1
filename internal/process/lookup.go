package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"

	"execserver/internal/sys"
)

// Error says why a process could not be started. errors.Is finds the system's reason.
type Error struct {
	Program string // as asked for
	Reason  string // in a few words, with the names that matter
	Err     error  // a syscall.Errno, or nil
	Hint    string // what to do, or ""
}

// maxQuoted is how many bytes of the program's name the text of an Error has.
const maxQuoted = 256

func (e *Error) Error() string {
	program := e.Program
	if len(program) > maxQuoted {
		program = program[:maxQuoted] + "…"
	}
	text := fmt.Sprintf("cannot start %q: %s", program, e.Reason)
	if e.Err != nil {
		text += ": " + sys.ErrorText(e.Err)
	}
	if e.Hint != "" {
		text += "; " + e.Hint
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// command is a checked Spec whose program has been found.
type command struct {
	path string // of the program; relative to dir unless absolute
	argv []string
	env  []string
	dir  string
	spec Spec
}

// defaultPath is searched when the child's environment has no PATH.
const defaultPath = "/usr/local/bin:/usr/bin:/bin"

// prepare checks a Spec and finds the program, until ctx ends.
func prepare(ctx context.Context, spec Spec) (command, error) {
	if len(spec.Argv) == 0 {
		return command{}, &Error{Reason: "argv must not be empty"}
	}
	program := spec.Argv[0]
	refuse := func(err error, format string, args ...any) (command, error) {
		return command{}, &Error{Program: program, Reason: fmt.Sprintf(format, args...), Err: err}
	}
	if program == "" {
		return refuse(nil, "missing program: argv[0] is empty")
	}
	if err := CheckSize(spec.Argv, spec.Arg0, spec.Env); err != nil {
		return command{}, err
	}
	argv := append([]string(nil), spec.Argv...)
	if spec.Arg0 != nil {
		argv[0] = *spec.Arg0
	}
	env := make([]string, 0, len(spec.Env))
	for name, value := range spec.Env {
		env = append(env, name+"="+value)
	}
	sort.Strings(env)
	if hasNUL(argv) || hasNUL(env) || hasNUL(spec.Argv[:1]) {
		return refuse(nil, "nul byte found in provided data")
	}
	info, err := sys.Stat(spec.Dir)
	switch {
	case errors.Is(err, syscall.ENOENT):
		reason := fmt.Sprintf("working directory %q", spec.Dir)
		return command{}, &Error{Program: program, Reason: reason, Err: syscall.ENOENT, Hint: spec.NoDirHint}
	case err != nil:
		return refuse(errnoOf(err), "working directory %q", spec.Dir)
	case !info.IsDir():
		return refuse(syscall.ENOTDIR, "working directory %q", spec.Dir)
	}
	if err := mayEnter(spec.Dir); err != nil {
		return refuse(err, "working directory %q", spec.Dir)
	}
	path, err := lookup(ctx, program, spec)
	if err != nil {
		return command{}, err
	}
	return command{path: path, argv: argv, env: env, dir: spec.Dir, spec: spec}, nil
}

func hasNUL(list []string) bool {
	for _, s := range list {
		if strings.IndexByte(s, 0) >= 0 {
			return true
		}
	}
	return false
}

// lookup finds a program as execvp does, with the child's PATH and relative to the child's
// directory. It spells the path as execvp does, because a script sees it as its $0.
func lookup(ctx context.Context, program string, spec Spec) (string, error) {
	if strings.ContainsRune(program, '/') || strings.ContainsRune(program, filepath.Separator) {
		path, err := executable(program, spec.Dir)
		if err != nil {
			return "", &Error{Program: program, Reason: "program", Err: err}
		}
		return path, nil
	}
	list, ok := searchPath(spec.Env)
	if !ok {
		list = defaultPath
	}
	dirs := filepath.SplitList(list)
	if len(dirs) > maxPathEntries {
		return "", &Error{Program: program, Reason: fmt.Sprintf("PATH has %d directories, the limit is %d", len(dirs), maxPathEntries)}
	}
	var denied error
	for _, dir := range dirs {
		if ctx.Err() != nil {
			return "", &Error{Program: program, Reason: fmt.Sprintf("the search for it was given up: %s", context.Cause(ctx))}
		}
		path, err := executable(inDirectory(dir, program), spec.Dir)
		if err == nil {
			return path, nil
		}
		if errors.Is(err, syscall.EACCES) {
			denied = err
		}
	}
	if denied != nil {
		return "", &Error{Program: program, Reason: fmt.Sprintf("program, in PATH %q", list), Err: denied}
	}
	return "", &Error{Program: program, Reason: fmt.Sprintf("program not found in PATH %q", list), Err: syscall.ENOENT}
}

// inDirectory returns the path of a program in an element of PATH. The empty element is the
// working directory.
func inDirectory(dir, program string) string {
	if dir == "" {
		return program
	}
	return dir + string(filepath.Separator) + program
}

// absolute makes a path absolute that may be relative to dir.
func absolute(path, dir string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// errnoOf returns the errno inside an error of package os, or the error itself.
func errnoOf(err error) error {
	if e := syscall.Errno(0); errors.As(err, &e) {
		return e
	}
	return err
}

// Find finds a program as Start does, with this program's own PATH.
func Find(program, dir string) (string, error) {
	env := make(map[string]string)
	if list, ok := os.LookupEnv("PATH"); ok {
		env["PATH"] = list
	}
	return lookup(context.Background(), program, Spec{Dir: dir, Env: env})
}
