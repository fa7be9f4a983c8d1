// Package errno gives the errors of the operating system the texts that clients
// of the wire know: the wording of the C library that the released server is
// linked with, and the number.
package errno

import (
	"errors"
	"fmt"
	"syscall"
)

// Text returns "No such file or directory (os error 2)" for the errno inside
// err, and err's own text when there is none.
func Text(err error) string {
	e, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return err.Error()
	}
	text, ok := texts[e]
	if !ok {
		text = e.Error()
	}
	return fmt.Sprintf("%s (os error %d)", text, int(e))
}

// Error is an error with the text that Text makes of it.
type Error struct{ err error }

// Wrap gives err the text of its errno, without what package net or os has put
// around it and the caller says in its own words; errors.Is goes on to work. An
// error without errno is returned as it is.
func Wrap(err error) error {
	if _, ok := errors.AsType[syscall.Errno](err); !ok {
		return err
	}
	return &Error{err}
}

func (e *Error) Error() string { return Text(e.err) }

func (e *Error) Unwrap() error { return e.err }
