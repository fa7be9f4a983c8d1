// Package sys makes the system calls that can fail. Its functions are those of packages
// unix, syscall and os. In a build with the tag faults, each has a point at which a test
// can make it fail (package fault).
package sys

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"execserver/internal/fault"
)

// OpenFile is os.OpenFile.
func OpenFile(name string, flag int, perm os.FileMode) (*os.File, error) {
	if err := fault.At("open"); err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.OpenFile(name, flag, perm)
}

// ReadFile is os.ReadFile.
func ReadFile(name string) ([]byte, error) {
	if err := fault.At("readfile"); err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.ReadFile(name)
}

// WriteFile is os.WriteFile.
func WriteFile(name string, data []byte, perm os.FileMode) error {
	if err := fault.At("writefile"); err != nil {
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	return os.WriteFile(name, data, perm)
}

// ReadDir is os.ReadDir.
func ReadDir(name string) ([]os.DirEntry, error) {
	if err := fault.At("readdir"); err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.ReadDir(name)
}

// Stat is os.Stat.
func Stat(name string) (os.FileInfo, error) {
	if err := fault.At("stat"); err != nil {
		return nil, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return os.Stat(name)
}

// WriteTo is f.Write.
func WriteTo(f *os.File, b []byte) (int, error) {
	if err := fault.At("write file"); err != nil {
		return 0, &os.PathError{Op: "write", Path: f.Name(), Err: err}
	}
	return f.Write(b)
}

// NewFile is os.NewFile: the file owns the descriptor from then on.
func NewFile(fd uintptr, name string) *os.File {
	fault.Disown(int(fd))
	return os.NewFile(fd, name)
}

// ErrorText returns, for example, "no such file or directory (os error 2)" for the errno
// wrapped in err. Without an errno it returns err's own text.
func ErrorText(err error) string {
	e, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return err.Error()
	}
	return fmt.Sprintf("%s (os error %d)", e.Error(), int(e))
}

// Error is an error with the text that ErrorText returns for it.
type Error struct{ err error }

// WrapError gives err the text of its errno, and drops the context of packages net or os,
// because the caller adds its own. errors.Is still works. WrapError returns an error without
// errno unchanged.
func WrapError(err error) error {
	if _, ok := errors.AsType[syscall.Errno](err); !ok {
		return err
	}
	return &Error{err}
}

func (e *Error) Error() string { return ErrorText(e.err) }

func (e *Error) Unwrap() error { return e.err }

// OnDescriptor calls a function with the descriptor of a connection or a file, which stays open
// as long as the function runs.
func OnDescriptor(of any, f func(fd int) error) error {
	conn, ok := of.(syscall.Conn)
	if !ok {
		return errors.New("the connection has no descriptor")
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}
