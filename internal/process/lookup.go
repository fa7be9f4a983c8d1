package process

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sort"
	"strings"
	"syscall"

	"execserver/internal/execvp"
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

// command is a checked Spec. Its directory and its program have been found, unless it has a
// sandbox.
type command struct {
	path string // of the program; relative to dir unless absolute; "" with a sandbox
	argv []string
	env  []string
	list string // the directories to search for the program
	dir  string
	spec Spec
}

// prepare checks a Spec and finds the program. It stops searching when ctx ends.
//
// prepare looks at no file for a command with a sandbox: only what the sandbox shows may decide
// about the start and its error. There the launcher finds the directory and the program.
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
	c := command{argv: argv, env: env, dir: spec.Dir, spec: spec}
	var ok bool
	if c.list, ok = searchPath(spec.Env); !ok {
		c.list = execvp.DefaultPath
	}
	if n := len(filepath.SplitList(c.list)); n > maxPathEntries && !execvp.IsPath(program) {
		return refuse(nil, "PATH has %d directories, the limit is %d", n, maxPathEntries)
	}
	if spec.Sandbox != nil {
		return c, nil
	}
	return c, c.find(ctx)
}

// find finds the directory and the program of a command without a sandbox.
func (c *command) find(ctx context.Context) error {
	if err := checkDirectory(c.dir); err != nil {
		return c.noDirectory(err, "")
	}
	err := execvp.Find(c.spec.Argv[0], c.list, func(path string) (stop bool, err error) {
		if ctx.Err() != nil {
			return true, &Error{Program: c.spec.Argv[0], Reason: fmt.Sprintf("search in PATH stopped: %s", context.Cause(ctx))}
		}
		c.path, err = checkExecutable(path, c.dir)
		return false, err
	})
	if _, stopped := errors.AsType[*Error](err); err != nil && !stopped {
		return c.noProgram(err, "")
	}
	return err
}

// checkDirectory checks that a directory can be the working directory of a child. The kernel
// has the last word, but does not report that the directory was the reason.
func checkDirectory(dir string) error {
	info, err := sys.Stat(dir)
	switch {
	case err != nil:
		return errnoOf(err)
	case !info.IsDir():
		return syscall.ENOTDIR
	}
	return checkSearchable(dir)
}

// noDirectory returns the error for a working directory; where is where it is missing, and begins
// with a space, or "".
func (c *command) noDirectory(err error, where string) error {
	e := &Error{Program: c.spec.Argv[0], Reason: fmt.Sprintf("working directory %q%s", c.dir, where), Err: errnoOf(err)}
	if errors.Is(err, syscall.ENOENT) {
		e.Err, e.Hint = syscall.ENOENT, c.spec.NoDirHint
	}
	return e
}

// noProgram returns the error for a program that execvp.Find has not found.
func (c *command) noProgram(err error, where string) error {
	reason := "program"
	switch {
	case execvp.IsPath(c.spec.Argv[0]):
	case errors.Is(err, syscall.EACCES):
		reason = fmt.Sprintf("program, in PATH %q", c.list)
	default:
		reason = fmt.Sprintf("program not found in PATH %q", c.list)
	}
	return &Error{Program: c.spec.Argv[0], Reason: reason + where, Err: errnoOf(err)}
}

func hasNUL(list []string) bool {
	for _, s := range list {
		if strings.IndexByte(s, 0) >= 0 {
			return true
		}
	}
	return false
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
