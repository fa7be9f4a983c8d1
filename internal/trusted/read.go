// Package trusted reads the files that decide who may connect: secrets, keys,
// certificates and lists of them. It refuses files that another user could have read or
// written, and makes a program's values again when the files change.
//
// Start at [Load].
package trusted

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Kind says what other users may do with a file. Only its owner may write it.
type Kind int

// The values of Kind.
const (
	Secret Kind = iota // others must not read it
	Public             // others may read it
)

// maxBytes bounds the size of a file. No real one is longer, and a path may name a device
// that never ends.
const maxBytes = 1 << 20

// errNotRegular is the error for something that replaced a regular file.
var errNotRegular = errors.New("it is not a regular file; others are read only when this program starts")

// Read returns the content of a file. It refuses a file that other users can change, a
// secret file that they can read, and a file that belongs to another user except root.
func Read(path string, kind Kind) ([]byte, error) {
	content, _, err := read(path, kind)
	return content, err
}

// readAgain is like read, for a file that was regular or missing before. It does not open
// a device, because that may have an effect, nor a pipe, because its content may be old.
func readAgain(path string, kind Kind) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "read", Path: path, Err: errNotRegular}
	}
	if err != nil {
		return nil, err
	}
	content, regular, err := read(path, kind)
	if err == nil && !regular { // the file was replaced a moment ago
		return nil, &os.PathError{Op: "read", Path: path, Err: errNotRegular}
	}
	return content, err
}

// read is Read, and says whether the file can be read again.
func read(path string, kind Kind) (content []byte, again bool, err error) {
	// Without O_NONBLOCK, opening a FIFO without a writer would block.
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
	content, err = io.ReadAll(io.LimitReader(f, maxBytes+1))
	switch regular := info.Mode().IsRegular(); {
	case err != nil:
	case len(content) > maxBytes:
		err = fmt.Errorf("file is longer than %d bytes", maxBytes)
	case len(content) == 0 && !regular: // such as a pipe without a writer
		err = &os.PathError{Op: "read", Path: path, Err: errors.New("it is a pipe or a device with nothing in it")}
	}
	if err != nil {
		return nil, false, err
	}
	return content, info.Mode().IsRegular(), nil
}

// Absolute makes a path absolute. It expands a leading "~/", which shells do not expand
// in --flag=~/file.
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
