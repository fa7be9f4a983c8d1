package client

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"execserver/protocol"
	"execserver/transport"
)

// Errors that a caller can test for with errors.Is.
var (
	// ErrClosed reports that this program closed the Environment.
	ErrClosed = errors.New("the environment is closed")

	// ErrRecovering reports that the connection is being recovered. Calls return it only
	// with Options.FailFast.
	ErrRecovering = errors.New("the connection is being recovered")

	// ErrStdinClosed reports that the process does not, or no longer, accept input. It matches
	// syscall.EPIPE.
	ErrStdinClosed error = stdinClosedError{}

	// ErrObserving is the error of methods that change something, called on an Environment that
	// observes its session (Options.Observe). TakeOver makes it the owner.
	ErrObserving = errors.New("this environment observes a session and cannot change anything; take it over first")

	// ErrTakenOver reports that another program has taken the session over.
	ErrTakenOver = errors.New("another program has taken the session over")

	// ErrUnknownSession reports that the server has no such session, or that it has ended.
	ErrUnknownSession = errors.New("the server has no such session, or it has ended")

	// ErrServerShutdown reports that the server has shut down and ended its sessions.
	ErrServerShutdown = errors.New("the server has shut down, and its sessions with it")

	// ErrNoSession reports that the Environment has no session (Options.NoSession).
	ErrNoSession = errors.New("this environment has no session, and can only list and control those of the server")

	// ErrTruncated reports that FS.ReadDir, Sessions, AllProcesses or AllUsage returned only a
	// part, because there is more than the server lists.
	ErrTruncated = errors.New("there are more entries than the server lists; list a directory by a command")
)

type stdinClosedError struct{}

func (stdinClosedError) Error() string { return "the process does not read its stdin any more" }

func (stdinClosedError) Is(target error) bool { return target == syscall.EPIPE }

var (
	errNotStarted     = errors.New("client: not started")
	errAlreadyStarted = errors.New("client: already started")
)

// ExitError reports that a command did not exit with code 0.
type ExitError struct {
	Exit

	// Stderr is the beginning and the end of standard error, 64 KiB together, if Output
	// was called and Cmd.Stderr was nil.
	Stderr []byte

	// Cause says why the client ended the command: the cause of its context. It is nil if
	// the command ended otherwise. Unwrap returns it.
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

// LostError reports that the client has lost track of a process that was started: it will not
// learn how the process exits, or it has not received all of the output. Err is why. The process
// may still run, except after a *GapError, for which the client kills it.
type LostError struct {
	ProcessID string
	Err       error // such as ErrClosed, a *DisconnectedError or a *GapError
}

func (e *LostError) Error() string {
	return fmt.Sprintf("lost track of process %s: %s", e.ProcessID, e.Err)
}

func (e *LostError) Unwrap() error { return e.Err }

// StartError reports that the server could not start a command, or that the protocol cannot carry
// it. It matches exec.ErrNotFound if there is no such program, and fs.ErrNotExist if there is no
// such directory. It matches fs.ErrPermission if the server may not execute the program.
type StartError struct {
	Path string // of the program, as requested
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

// DialError reports that connecting to a server failed, or the handshake after it. Unwrap
// returns Err, which matches context.DeadlineExceeded after a timeout.
type DialError struct {
	// URL is the server's URL without user and query, or for Launch the path of the program. For
	// Connect and New it is the result of the connection's Remote, or "" without a connection.
	URL string
	// Status is the HTTP status with which a server refused the upgrade, else 0.
	Status int
	Err    error
}

func (e *DialError) Error() string {
	if e.URL == "" {
		return "failed to connect to exec-server: " + e.Err.Error()
	}
	return fmt.Sprintf("failed to connect to exec-server %s: %s", e.URL, e.Err)
}

func (e *DialError) Unwrap() error { return e.Err }

// retryable reports whether another attempt may succeed.
func (e *DialError) retryable() bool {
	return e.Status == 0 || e.Status >= 500 || e.Status == 408 || e.Status == 429
}

// InterruptedError reports that the connection broke before an operation was complete that
// cannot continue over another connection: a request that the server must not carry out twice,
// writing a file that Create opened, a connection returned by DialContext, or an HTTP request.
// The server may or may not have carried it out. Other operations continue over the next
// connection, unless Environment.Err says that there will be none.
type InterruptedError struct {
	Cause error // why the connection broke
}

func (e *InterruptedError) Error() string {
	return "the connection broke before the operation was complete: " + e.Cause.Error()
}

func (e *InterruptedError) Unwrap() error { return e.Cause }

// DisconnectedError reports that the Environment has lost its connection for good. All later
// calls fail with it, and Environment.Err returns it.
type DisconnectedError struct {
	Cause error // why the connection broke
	Err   error // why the client did not recover it; nil if it did not try
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

// UnsupportedError reports that the server does not support an operation. It matches
// errors.ErrUnsupported.
type UnsupportedError struct {
	Operation  string // such as "close stdin"
	Capability string // the missing capability, or a description of it
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s: the server does not support it: it lacks %s", e.Operation, e.Capability)
}

// Is makes the error match errors.ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// LaggedError reports that a loop over Process.Events was too slow, or began too late: the client no
// longer holds the events From to To, inclusive. Process.Read may still return them.
type LaggedError struct {
	From, To uint64 // numbers of events
}

func (e *LaggedError) Error() string {
	return fmt.Sprintf("events %d to %d were missed; Process.Read may still have them", e.From, e.To)
}

// GapError reports that the server evicted the events From to To, inclusive, before the client
// received them. This does not happen to the owner of a session on a server with the capability
// processAck.
//
// If output of a process that this Environment started is missing, the client kills the process, and
// Wait returns a *LostError that wraps the GapError. For an attached process, Events, EventsAfter
// and Copy report the GapError and continue.
type GapError struct {
	From, To     uint64 // numbers of events
	DroppedBytes uint64 // number of missing bytes of output; 0 if it is unknown
}

func (e *GapError) Error() string {
	text := fmt.Sprintf("failed to recover process output: events %d to %d are no longer retained", e.From, e.To)
	if e.DroppedBytes > 0 {
		text += fmt.Sprintf(" (%d bytes)", e.DroppedBytes)
	}
	return text
}

// answerError says that a server gave an answer that no server gives.
type answerError struct {
	method string
	err    error
}

func (e *answerError) Error() string {
	return fmt.Sprintf("the answer to %s cannot be understood: %s", e.method, e.err)
}

func (e *answerError) Unwrap() error { return e.err }

// Why a process fails whose server contradicts itself.
var (
	errExitedTwice      = errors.New("the server reports the end of the process twice")
	errClosedBeforeExit = errors.New("the server says that no more output comes, and not how the process ended")
	errFlood            = errors.New("the server sends much output of a process that it has ended, and the program does not read it")
)

// timeoutError is the cause of contexts that bound a step of connecting.
type timeoutError struct {
	what  string
	after time.Duration
}

func (e *timeoutError) Error() string { return fmt.Sprintf("%s timed out after %s", e.what, e.after) }

// Is makes the error match context.DeadlineExceeded.
func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// serverError is an error of the server that also is an error of the operating system.
type serverError struct {
	said  *protocol.Error
	errno syscall.Errno
}

func (e *serverError) Error() string   { return e.said.Error() }
func (e *serverError) Unwrap() []error { return []error{e.said, e.errno} }

// osError finds the number in the text of every server: "no such file or directory (os
// error 2)" from this one, and other words with the same number from a released one. Its
// first use compiles it, because many programs that import this package never need it.
var osError = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\(os error (\d+)\)`) })

// explain gives an error of the server the identity of the corresponding local error. os
// is the server's system.
func explain(err error, os string) error {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return err
	}
	if all := osError().FindAllStringSubmatch(e.Message, -1); all != nil {
		n, _ := strconv.Atoi(all[len(all)-1][1]) // a name may look like one, before it
		if errno, ok := errnos(os)[n]; ok {
			return &serverError{e, errno}
		}
	}
	if e.Code == protocol.CodeNotFound {
		return &serverError{e, syscall.ENOENT}
	}
	return err
}

// errnos returns the numbers of the errors on which a caller may act.
func errnos(os string) map[int]syscall.Errno {
	switch os {
	case "windows":
		return map[int]syscall.Errno{
			2: syscall.ENOENT, 3: syscall.ENOENT, 5: syscall.EACCES, 80: syscall.EEXIST, 183: syscall.EEXIST,
			145: syscall.ENOTEMPTY, 267: syscall.ENOTDIR,
		}
	case "linux":
		return map[int]syscall.Errno{
			1: syscall.EPERM, 2: syscall.ENOENT, 13: syscall.EACCES, 16: syscall.EBUSY, 17: syscall.EEXIST, 20: syscall.ENOTDIR,
			21: syscall.EISDIR, 22: syscall.EINVAL, 26: syscall.ETXTBSY, 28: syscall.ENOSPC, 30: syscall.EROFS, 36: syscall.ENAMETOOLONG,
			39: syscall.ENOTEMPTY, 40: syscall.ELOOP, 111: syscall.ECONNREFUSED,
		}
	}
	return map[int]syscall.Errno{ // of the BSDs, and of macOS
		1: syscall.EPERM, 2: syscall.ENOENT, 13: syscall.EACCES, 16: syscall.EBUSY, 17: syscall.EEXIST, 20: syscall.ENOTDIR,
		21: syscall.EISDIR, 22: syscall.EINVAL, 26: syscall.ETXTBSY, 28: syscall.ENOSPC, 30: syscall.EROFS, 61: syscall.ECONNREFUSED,
		62: syscall.ELOOP, 63: syscall.ENAMETOOLONG, 66: syscall.ENOTEMPTY,
	}
}

// dialError wraps an error of a transport.
func dialError(url string, err error) error {
	e := &DialError{URL: url, Err: err}
	var refused *transport.RefusedError
	if errors.As(err, &refused) {
		e.Status = refused.Status
	}
	return e
}

// notFound adds to the server's error that a program was not found.
type notFound struct{ error }

func (e notFound) Unwrap() []error { return []error{e.error, exec.ErrNotFound} }
