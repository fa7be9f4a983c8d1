package trusted

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
)

// Files reads files for Load, and remembers their content.
type Files struct {
	read  map[string]*file
	once  map[string]*file // files that can be read only once, from all attempts
	seen  map[string]*file // content that two checks have found already
	first bool             // the program is starting
}

// file is the content of a file, or the error of reading it.
type file struct {
	kind    Kind
	content []byte
	again   bool // the file can be read again
	err     error
}

func (f *file) failure() string {
	if f.err == nil {
		return ""
	}
	return f.err.Error()
}

// Read is like the function Read. It reads a pipe once, when the program starts, and
// remembers its content.
func (f *Files) Read(path string, kind Kind) ([]byte, error) {
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

func (f *Files) readNow(path string, kind Kind) *file {
	one := &file{kind: kind}
	if f.first {
		one.content, one.again, one.err = read(path, kind)
	} else {
		one.content, one.err = readAgain(path, kind)
		one.again = true
	}
	return one
}

// reread reads all files again that can be read again.
func (f *Files) reread() map[string]*file {
	again, now := &Files{}, make(map[string]*file)
	for path, old := range f.read {
		if f.once[path] == nil {
			now[path] = again.readNow(path, old.kind)
		}
	}
	return now
}

// differ reports whether one of the files has changed.
func differ(now, before map[string]*file) bool {
	for path, file := range now {
		if old := before[path]; old == nil || file.failure() != old.failure() || !bytes.Equal(file.content, old.content) {
			return true
		}
	}
	return false
}

// Value is a value made from files. All methods may be called concurrently.
type Value[T any] struct {
	load func(*Files) (T, error)

	mu      sync.Mutex       // serializes loading
	files   *Files           // of the last attempt
	found   map[string]*file // by the last check, if it found a change
	current atomic.Pointer[T]
	read    atomic.Pointer[[2]*Files] // of the last successful attempt, and of the last
}

// Load returns a Value. It calls load now, and again when the files that load reads have
// changed.
func Load[T any](load func(*Files) (T, error)) (*Value[T], error) {
	v := &Value[T]{load: load, files: &Files{once: make(map[string]*file)}}
	if err := v.reload(nil); err != nil {
		return nil, err
	}
	return v, nil
}

// Get returns the value of the last successful load.
func (v *Value[T]) Get() T { return *v.current.Load() }

// Paths returns the paths of the files of a kind that were read for the current value and
// in the last attempt.
func (v *Value[T]) Paths(kind Kind) (paths []string) {
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
// Value stays as it was. A nil Value never changes.
func (v *Value[T]) Refresh() (changed bool, err error) { return v.refresh(true) }

// Poll is like Refresh, but accepts a change only if the previous Poll found the same
// content: another program may be writing the files.
func (v *Value[T]) Poll() (changed bool, err error) { return v.refresh(false) }

func (v *Value[T]) refresh(atOnce bool) (changed bool, err error) {
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
func (v *Value[T]) reload(seen map[string]*file) error {
	files := &Files{read: make(map[string]*file), once: v.files.once, seen: seen, first: v.files.read == nil}
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
