package filesystem

import (
	"errors"
	"io/fs"
	"syscall"

	"execserver/internal/sys"
)

// Kind classifies errors by what a caller does about them.
type Kind int

const (
	// Other is any failure except the two below.
	Other Kind = iota
	// NotFound means that the file, or a directory on the way, does not exist.
	NotFound
	// InvalidInput means that this package, or the system's permissions, refuse the
	// request.
	InvalidInput
)

// A Refusal is a request that this package does not carry out, whatever the system would
// say. It matches [fs.ErrInvalid].
type Refusal struct{ Text string }

func (e *Refusal) Error() string { return e.Text }

// Is makes a Refusal match fs.ErrInvalid.
func (e *Refusal) Is(target error) bool { return target == fs.ErrInvalid }

// Classify returns the kind of an error of this package and the text for a peer. The text
// of a system error ends in its number, as in "No such file or
// directory (os error 2)", because package client distinguishes errors by it. The
// text has no paths, because the peer knows them.
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
	text := sys.ErrorText(err)
	number, ok := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return NotFound, text
	case ok && (errors.Is(number, fs.ErrPermission) || isInvalid(number)):
		return InvalidInput, text
	}
	return Other, text
}

// pathError makes the error for a failed system call. All of this package's system errors
// come from it.
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

// UnknownHandleError reports that no file is open under an id.
type UnknownHandleError struct{ ID string }

func (e *UnknownHandleError) Error() string { return "unknown file handle `" + e.ID + "`" }
