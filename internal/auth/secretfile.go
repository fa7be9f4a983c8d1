package auth

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

// Files reads files for LoadFiles, and remembers their content.
type Files struct {
	read  map[string]*fileContent
	once  map[string]*fileContent // files that can be read only once, from all attempts
	seen  map[string]*fileContent // content that two checks have found already
	first bool                    // the program is starting
}

// fileContent is the content of a file, or the error of reading it.
type fileContent struct {
	kind    FileKind
	content []byte
	again   bool // the file can be read again
	err     error
}

func (f *fileContent) failure() string {
	if f.err == nil {
		return ""
	}
	return f.err.Error()
}

// Read is like the function ReadFile. It reads a pipe once, when the program starts, and
// remembers its content.
func (f *Files) Read(path string, kind FileKind) ([]byte, error) {
	one := f.once[path]
	if one == nil {
		one = f.seen[path]
	}
	if one == nil {
		one = f.readNow(path, kind)
	}
	if one.err == nil && !one.again {
		f.once[path] = one
	}
	f.read[path] = one
	return bytes.Clone(one.content), one.err
}

func (f *Files) readNow(path string, kind FileKind) *fileContent {
	one := &fileContent{kind: kind}
	if f.first {
		one.content, one.again, one.err = readFile(path, kind)
	} else {
		one.content, one.err = readAgain(path, kind)
		one.again = true
	}
	return one
}

// reread reads all files again that can be read again.
func (f *Files) reread() map[string]*fileContent {
	again, now := &Files{}, make(map[string]*fileContent)
	for path, old := range f.read {
		if f.once[path] == nil {
			now[path] = again.readNow(path, old.kind)
		}
	}
	return now
}

// differ reports whether one of the files has changed.
func differ(now, before map[string]*fileContent) bool {
	for path, file := range now {
		if old := before[path]; old == nil || file.failure() != old.failure() || !bytes.Equal(file.content, old.content) {
			return true
		}
	}
	return false
}

// Reloaded is a value made from files. All methods may be called concurrently.
type Reloaded[T any] struct {
	load func(*Files) (T, error)

	mu      sync.Mutex              // serializes loading
	files   *Files                  // of the last attempt
	found   map[string]*fileContent // by the last check, if it found a change
	current atomic.Pointer[T]
	read    atomic.Pointer[[2]*Files] // of the last successful attempt, and of the last
}

// LoadFiles returns a Reloaded. It calls load now, and again when the files that load reads have
// changed.
func LoadFiles[T any](load func(*Files) (T, error)) (*Reloaded[T], error) {
	v := &Reloaded[T]{load: load, files: &Files{once: make(map[string]*fileContent)}}
	if err := v.reload(nil); err != nil {
		return nil, err
	}
	return v, nil
}

// Get returns the value of the last successful load.
func (v *Reloaded[T]) Get() T { return *v.current.Load() }

// Paths returns the paths of the files of a kind that were read for the current value and
// in the last attempt.
func (v *Reloaded[T]) Paths(kind FileKind) (paths []string) {
	for _, files := range v.read.Load() {
		for path, file := range files.read {
			if file.kind == kind && !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// Refresh loads again if a file has changed since the last attempt. After an error the
// Reloaded stays as it was. A nil Reloaded never changes.
func (v *Reloaded[T]) Refresh() (changed bool, err error) { return v.refresh(true) }

// Poll is like Refresh, but accepts a change only if the previous Poll found the same
// content: another program may be writing the files.
func (v *Reloaded[T]) Poll() (changed bool, err error) { return v.refresh(false) }

func (v *Reloaded[T]) refresh(atOnce bool) (changed bool, err error) {
	if v == nil {
		return false, nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.found
	v.found = nil
	now := v.files.reread()
	if !differ(now, v.files.read) {
		return false, nil
	}
	if !atOnce && (before == nil || differ(now, before)) {
		v.found = now
		return false, nil
	}
	err = v.reload(now)
	return err == nil, err
}

// reload loads the value from the content in seen, and reads the other files that it
// needs.
func (v *Reloaded[T]) reload(seen map[string]*fileContent) error {
	files := &Files{read: make(map[string]*fileContent), once: v.files.once, seen: seen, first: v.files.read == nil}
	value, err := v.load(files)
	v.files = files
	good := files
	if before := v.read.Load(); err != nil && before != nil {
		good = before[0]
	}
	v.read.Store(&[2]*Files{good, files})
	if err != nil {
		return err
	}
	v.current.Store(&value)
	return nil
}

// FileKind defines the access to a file that other users may have. Only its owner may write
// it.
type FileKind int

// The values of FileKind.
const (
	SecretFile FileKind = iota // others must not read it
	PublicFile                 // others may read it
)

// maxFileBytes bounds the size of a file. No real one is longer, and a path may name a device
// that never ends.
const maxFileBytes = 1 << 20

// errNotRegular is the error for something that replaced a regular file.
var errNotRegular = errors.New("it is not a regular file; others are read only when this program starts")

// ReadFile returns the content of a file. It refuses a file that other users can change, a
// secret file that they can read, and a file that belongs to another user except root.
func ReadFile(path string, kind FileKind) ([]byte, error) {
	content, _, err := readFile(path, kind)
	return content, err
}

// readAgain is like readFile, for a file that was regular or missing before. It does not open
// a device, because that may have an effect, nor a pipe, because its content may be old.
func readAgain(path string, kind FileKind) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "read", Path: path, Err: errNotRegular}
	}
	if err != nil {
		return nil, err
	}
	content, regular, err := readFile(path, kind)
	if err == nil && !regular { // the file was replaced a moment ago
		return nil, &os.PathError{Op: "read", Path: path, Err: errNotRegular}
	}
	return content, err
}

// readFile is ReadFile, and also reports whether the file can be read again.
func readFile(path string, kind FileKind) (content []byte, again bool, err error) {
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
	if err := checkFile(path, info, kind); err != nil {
		return nil, false, err
	}
	content, err = io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	switch regular := info.Mode().IsRegular(); {
	case err != nil:
	case len(content) > maxFileBytes:
		err = fmt.Errorf("file is longer than %d bytes", maxFileBytes)
	case len(content) == 0 && !regular: // such as a pipe without a writer
		err = &os.PathError{Op: "read", Path: path, Err: errors.New("it is a pipe or a device with nothing in it")}
	}
	if err != nil {
		return nil, false, err
	}
	return content, info.Mode().IsRegular(), nil
}

// AbsolutePath makes a path absolute. It expands a leading "~/", which shells do not expand
// in --flag=~/file.
func AbsolutePath(file string) (string, error) {
	if file == "~" || len(file) > 1 && file[0] == '~' && os.IsPathSeparator(file[1]) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		file = filepath.Join(home, file[1:])
	}
	return filepath.Abs(file)
}
