package client

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"execserver/protocol"
	"execserver/transport"
)

// Errors that a caller may act on, by errors.Is. Besides these, errors match
// exec.ErrNotFound, exec.ErrWaitDelay, errors.ErrUnsupported, and for files
// fs.ErrNotExist, fs.ErrExist and fs.ErrPermission.
var (
	// ErrClosed says that the Environment was closed here.
	ErrClosed = errors.New("the environment is closed")

	// ErrRecovering says that the connection is being made again, under
	// Options.FailFast.
	ErrRecovering = errors.New("the connection is being recovered")

	// ErrStdinClosed says that the process does not take input (any more). It
	// matches syscall.EPIPE.
	ErrStdinClosed error = stdinClosedError{}

	// ErrTruncated says that FS.ReadDir returns a part of the directory only.
	ErrTruncated = errors.New("the directory has more entries than the server lists; list it by a command")

	// ErrNoEnvironment is returned by Open when the configuration says that
	// nothing is to be executed.
	ErrNoEnvironment = errors.New("no execution environment is configured")
)

type stdinClosedError struct{}

func (stdinClosedError) Error() string { return "the process does not read its stdin any more" }

func (stdinClosedError) Is(target error) bool { return target == syscall.EPIPE }

var (
	errNotStarted     = errors.New("client: not started")
	errAlreadyStarted = errors.New("client: already started")
)

// ExitError says that a command ended in another way than with exit code 0.
type ExitError struct {
	Exit

	// Stderr is what Output has of the standard error, if Cmd.Stderr was nil:
	// its beginning and its end.
	Stderr []byte

	// Cause is why the command was ended from here: the cause of its
	// context. Nil when it ended otherwise. Unwrap returns it.
	Cause error
}

func (e *ExitError) Error() string {
	text := e.String()
	if e.Cause != nil {
		text += " (" + e.Cause.Error() + ")"
	}
	return text
}

func (e *ExitError) Unwrap() error { return e.Cause }

// ExitMissingError says that a command was started and that nobody told us how
// it ended, or whether. Err says why.
type ExitMissingError struct {
	ProcessID string
	Err       error
}

func (e *ExitMissingError) Error() string {
	return fmt.Sprintf("process %s: its end is unknown: %s", e.ProcessID, e.Err)
}

func (e *ExitMissingError) Unwrap() error { return e.Err }

// StartError says that a command could not be started. It matches
// exec.ErrNotFound when there is no such program, fs.ErrNotExist when there is
// no such directory, and fs.ErrPermission.
type StartError struct {
	Path string // of the program, as asked for
	Err  error
}

func (e *StartError) Error() string {
	text := e.Err.Error()
	if strings.HasPrefix(text, "cannot start ") { // it names the program itself
		return text
	}
	return fmt.Sprintf("cannot start %q: %s", e.Path, text)
}

func (e *StartError) Unwrap() error { return e.Err }

// DialError says that no connection could be made.
type DialError struct {
	// URL is that of the server without its query, or the program that was to
	// be one.
	URL string
	// Status is that of HTTP when a server refused the upgrade, else 0.
	Status int
	Err    error
}

func (e *DialError) Error() string {
	return fmt.Sprintf("failed to connect to exec-server %s: %s", e.URL, e.Err)
}

func (e *DialError) Unwrap() error { return e.Err }

// retryable reports whether another attempt may be more successful.
func (e *DialError) retryable() bool {
	return e.Status == 0 || e.Status >= 500 || e.Status == 408 || e.Status == 429
}

// DisconnectedError says that the connection to the server is gone. A request
// that it ends may have been carried out or not.
type DisconnectedError struct {
	Cause error // what broke it
	Err   error // why it could not be recovered; nil when that was not tried
}

func (e *DisconnectedError) Error() string {
	text := "exec-server transport disconnected: " + e.Cause.Error()
	if e.Err != nil {
		text += "; failed to resume exec-server session: " + e.Err.Error()
	}
	return text
}

func (e *DisconnectedError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Cause}
	}
	return []error{e.Cause, e.Err}
}

// UnsupportedError says that the server cannot do what was asked. It matches
// errors.ErrUnsupported.
type UnsupportedError struct {
	Operation  string // "close stdin"
	Capability string // the flag that the server does not announce, or the method that it does not know
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s: the server does not support it: it lacks %s", e.Operation, e.Capability)
}

// Is makes the error match errors.ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// LaggedError is what a subscriber of events is told that was too slow or came
// too late: the events numbered From to To are not held here any more. They may
// still be had by Process.Read.
type LaggedError struct {
	From, To uint64
}

func (e *LaggedError) Error() string {
	return fmt.Sprintf("events %d to %d were missed; Process.Read may still have them", e.From, e.To)
}

// GapError says that the server does not have events any more that it has not
// delivered, because the connection was away for too long. The process is
// terminated then.
type GapError struct {
	From, To     uint64
	DroppedBytes uint64 // of the process's output, if the server tells
}

func (e *GapError) Error() string {
	return fmt.Sprintf("failed to recover process output: events %d to %d are no longer retained", e.From, e.To)
}

// timeoutError is the cause of contexts that bound a step of connecting.
type timeoutError struct {
	what  string
	after time.Duration
}

func (e *timeoutError) Error() string { return fmt.Sprintf("%s timed out after %s", e.what, e.after) }

// Is makes the error match context.DeadlineExceeded.
func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// serverError is an error of the server, or of this machine in its place, that
// also is an error of the system.
type serverError struct {
	said  *protocol.Error
	errno syscall.Errno
}

func (e *serverError) Error() string   { return e.said.Error() }
func (e *serverError) Unwrap() []error { return []error{e.said, e.errno} }

// osError finds the number in the texts of all servers:
// "No such file or directory (os error 2)".
var osError = regexp.MustCompile(`\(os error (\d+)\)`)

// explain gives an error of the server the identity that it would have here. os
// is the server's.
func explain(err error, os string) error {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return err
	}
	if match := osError.FindStringSubmatch(e.Message); match != nil {
		n, _ := strconv.Atoi(match[1])
		if errno, ok := errnos(os)[n]; ok {
			return &serverError{e, errno}
		}
	}
	if e.Code == protocol.CodeNotFound {
		return &serverError{e, syscall.ENOENT}
	}
	return err
}

// errnos are the numbers of the errors that a caller may act on.
func errnos(os string) map[int]syscall.Errno {
	switch os {
	case "windows":
		return windowsErrnos
	case "linux":
		return linuxErrnos
	}
	return bsdErrnos
}

var (
	linuxErrnos = map[int]syscall.Errno{
		1: syscall.EPERM, 2: syscall.ENOENT, 13: syscall.EACCES, 17: syscall.EEXIST, 20: syscall.ENOTDIR,
		21: syscall.EISDIR, 22: syscall.EINVAL, 28: syscall.ENOSPC, 30: syscall.EROFS, 36: syscall.ENAMETOOLONG,
		39: syscall.ENOTEMPTY, 40: syscall.ELOOP,
	}
	bsdErrnos = map[int]syscall.Errno{
		1: syscall.EPERM, 2: syscall.ENOENT, 13: syscall.EACCES, 17: syscall.EEXIST, 20: syscall.ENOTDIR,
		21: syscall.EISDIR, 22: syscall.EINVAL, 28: syscall.ENOSPC, 30: syscall.EROFS, 62: syscall.ELOOP,
		63: syscall.ENAMETOOLONG, 66: syscall.ENOTEMPTY,
	}
	windowsErrnos = map[int]syscall.Errno{
		2: syscall.ENOENT, 3: syscall.ENOENT, 5: syscall.EACCES, 80: syscall.EEXIST, 183: syscall.EEXIST,
		145: syscall.ENOTEMPTY, 267: syscall.ENOTDIR,
	}
)

// dialError wraps what a transport said.
func dialError(url string, err error) error {
	e := &DialError{URL: url, Err: err}
	var refused *transport.RefusedError
	if errors.As(err, &refused) {
		e.Status = refused.Status
	}
	return e
}

// notFound adds that a program was not found to what the server says.
type notFound struct{ error }

func (e notFound) Unwrap() []error { return []error{e.error, exec.ErrNotFound} }
