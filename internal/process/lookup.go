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
	"execserver/protocol"
)

// Error reports why a process could not be started. It unwraps to the system's error.
type Error struct {
	Program string // as requested
	Reason  string // short, with the paths or sizes involved
	Err     error  // a syscall.Errno, or nil
	Hint    string // advice, or ""
}

// maxQuoted bounds the length of the program's name in the text of an Error.
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

// prepare checks a Spec and finds the program. It stops searching when ctx ends.
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
	if err := checkSearchable(spec.Dir); err != nil {
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
		path, err := checkExecutable(program, spec.Dir)
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
			return "", &Error{Program: program, Reason: fmt.Sprintf("search in PATH stopped: %s", context.Cause(ctx))}
		}
		path, err := checkExecutable(joinPath(dir, program), spec.Dir)
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

// joinPath returns the path of a program in an element of PATH. An empty element means the
// working directory.
func joinPath(dir, program string) string {
	if dir == "" {
		return program
	}
	return dir + string(filepath.Separator) + program
}

// absolute resolves a path relative to dir.
func absolute(path, dir string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// errnoOf returns the errno wrapped in an error, or the error itself.
func errnoOf(err error) error {
	if e := syscall.Errno(0); errors.As(err, &e) {
		return e
	}
	return err
}

// LookPath finds a program as Start does, with the PATH of this program.
func LookPath(program, dir string) (string, error) {
	env := make(map[string]string)
	if path, ok := os.LookupEnv("PATH"); ok {
		env["PATH"] = path
	}
	return lookup(context.Background(), program, Spec{Dir: dir, Env: env})
}

// The limits of Linux. Larger values are refused before any other work.
const (
	maxString  = 128<<10 - 1 // bytes of an argument, or of NAME=value
	maxStrings = 6 << 20     // bytes of all of them, each with its NUL and a pointer to it
	stringCost = 1 + 8
	maxProgram = 4<<10 - 1 // bytes of the program's path
)

// maxPathEntries bounds the directories in PATH.
const maxPathEntries = 4096

// CheckSize refuses arguments and variables that are larger than any system accepts. The
// error is an *Error that names the limit.
func CheckSize(argv []string, arg0 *string, env ...map[string]string) error {
	program := ""
	if len(argv) > 0 {
		program = argv[0]
	}
	refuse := func(err syscall.Errno, format string, args ...any) error {
		return &Error{Program: program, Reason: fmt.Sprintf(format, args...), Err: err}
	}
	if len(program) > maxProgram {
		return refuse(syscall.ENAMETOOLONG, "the name of the program is %d bytes long, the limit is %d", len(program), maxProgram)
	}
	if arg0 != nil {
		argv = append([]string{*arg0}, argv[min(1, len(argv)):]...)
	}
	total := 0
	for i, arg := range argv {
		if len(arg) > maxString {
			return refuse(syscall.E2BIG, "argument %d is %d bytes long, the limit is %d", i, len(arg), maxString)
		}
		total += len(arg) + stringCost
	}
	for _, variables := range env {
		for name, value := range variables {
			if n := len(name) + len("=") + len(value); n > maxString {
				return refuse(syscall.E2BIG, "the variable %q is %d bytes long with its name, the limit is %d", protocol.Shorten(name), n, maxString)
			}
			total += len(name) + len("=") + len(value) + stringCost
		}
	}
	if total > maxStrings {
		return refuse(syscall.E2BIG, "arguments and environment take %d bytes, the limit is %d", total, maxStrings)
	}
	return nil
}
