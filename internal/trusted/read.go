// Package trusted reads the files that decide who may come in: secrets, keys,
// certificates and lists of them. It refuses those that somebody else could have
// read or written, and makes what a program has of them anew when they change.
//
// Start at [Read] and [Load].
package trusted

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Kind says what others may do with a file. Nobody but its owner may write it.
type Kind int

// The values of Kind.
const (
	Secret Kind = iota // others must not read it
	Public             // others may read it
)

// MaxBytes bounds a file: nobody has longer ones, and a path may name a device
// that never ends.
const MaxBytes = 1 << 20

// Read returns the content of a file. A file that others can change, or read
// although it is secret, is refused, as is one of another user but root.
func Read(path string, kind Kind) ([]byte, error) {
	content, _, err := read(path, kind)
	return content, err
}

// errNotRegular is about what has taken the place of a file.
var errNotRegular = errors.New("it is not a regular file; others are read only when this program starts")

// readAgain is read for a file that was regular before, or not there: to open a device
// can do something, and a pipe has nothing to say about what is good now.
func readAgain(path string, kind Kind) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "read", Path: path, Err: errNotRegular}
	}
	if err != nil {
		return nil, err
	}
	content, regular, err := read(path, kind)
	if err == nil && !regular { // it has been replaced since a moment ago
		return nil, &os.PathError{Op: "read", Path: path, Err: errNotRegular}
	}
	return content, err
}

// read is Read, and reports whether the file can be read again.
func read(path string, kind Kind) (content []byte, again bool, err error) {
	// To open a named pipe that nobody writes to would wait.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	if info.IsDir() {
		return nil, false, &os.PathError{Op: "read", Path: path, Err: syscall.EISDIR}
	}
	if err := check(path, info, kind); err != nil {
		return nil, false, err
	}
	content, err = io.ReadAll(io.LimitReader(f, MaxBytes+1))
	switch regular := info.Mode().IsRegular(); {
	case err != nil:
	case len(content) > MaxBytes:
		err = fmt.Errorf("file is longer than %d bytes", MaxBytes)
	case len(content) == 0 && !regular: // as of a pipe that nobody writes to
		err = &os.PathError{Op: "read", Path: path, Err: errors.New("it is a pipe or a device with nothing in it")}
	}
	if err != nil {
		return nil, false, err
	}
	return content, info.Mode().IsRegular(), nil
}

// Absolute makes a path absolute and expands a leading "~/", which shells leave alone in
// --flag=~/file.
func Absolute(file string) (string, error) {
	if file == "~" || len(file) > 1 && file[0] == '~' && os.IsPathSeparator(file[1]) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		file = filepath.Join(home, file[1:])
	}
	return filepath.Abs(file)
}
