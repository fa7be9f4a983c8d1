package filesystem

import (
	"errors"
	"io/fs"
	"syscall"

	"execserver/internal/errno"
)

// Kind sorts errors the way a caller acts on them.
type Kind int

const (
	// Other is any failure that is neither of the two below.
	Other Kind = iota
	// NotFound says that the file, or a directory on the way, does not exist.
	NotFound
	// InvalidInput says that the request itself is refused, by this package or
	// by the system's permissions.
	InvalidInput
)

// A Refusal is a request this package does not carry out, whatever the system
// would say. It matches [fs.ErrInvalid].
type Refusal struct{ Text string }

func (e *Refusal) Error() string { return e.Text }

// Is makes a Refusal match fs.ErrInvalid.
func (e *Refusal) Is(target error) bool { return target == fs.ErrInvalid }

// Classify returns the kind of an error of this package and the text for a
// peer. For an error of the operating system that is the text of its C library
// with the number, as in "No such file or directory (os error 2)": existing
// clients show it to people, who know it from everywhere else. Paths are left
// out; the peer knows what it asked for.
func Classify(err error) (Kind, string) {
	if err == nil {
		return Other, ""
	}
	if e, ok := errors.AsType[*WriteError](err); ok {
		kind, text := Classify(e.Err)
		return kind, text + e.outcome()
	}
	if e, ok := errors.AsType[*Refusal](err); ok {
		return InvalidInput, e.Text
	}
	if e, ok := errors.AsType[*TooLargeError](err); ok {
		return InvalidInput, e.Error()
	}
	if e, ok := errors.AsType[*ChangedError](err); ok {
		return InvalidInput, e.Error()
	}
	if e, ok := errors.AsType[*UnknownHandleError](err); ok {
		return NotFound, e.Error()
	}
	text := errno.Text(err)
	number, ok := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return NotFound, text
	case ok && (errors.Is(number, fs.ErrPermission) || isInvalid(number)):
		return InvalidInput, text
	}
	return Other, text
}

// pathError is the one way this package reports a failed system call.
func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: cause(err)}
}

// cause strips wrappers that repeat the operation or name an internal path.
func cause(err error) error {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return err
}

// UnknownHandleError says that no file is open under an id.
type UnknownHandleError struct{ ID string }

func (e *UnknownHandleError) Error() string { return "unknown file handle `" + e.ID + "`" }
