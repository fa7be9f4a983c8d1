package trusted

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
)

// Files reads files for Load, and remembers what was in them.
type Files struct {
	read   map[string]*file
	before map[string]*file // of the last time
}

// file is one that was read, or could not be.
type file struct {
	kind    Kind
	content []byte
	again   bool // it can be read again; else the content is kept
	failure string
}

// Read is the function Read. A pipe is read once; its content is remembered.
func (f *Files) Read(path string, kind Kind) ([]byte, error) {
	if old := f.before[path]; old != nil && !old.again && old.failure == "" {
		f.read[path] = old
		return bytes.Clone(old.content), nil
	}
	content, again, err := read(path, kind)
	one := &file{kind: kind, content: bytes.Clone(content), again: again}
	if err != nil {
		one.failure = err.Error()
	}
	f.read[path] = one
	return content, err
}

// changed reports whether one of the files is not what it was.
func (f *Files) changed() bool {
	for path, old := range f.read {
		if !old.again && old.failure == "" {
			continue
		}
		content, _, err := read(path, old.kind)
		failure := ""
		if err != nil {
			failure = err.Error()
		}
		if failure != old.failure || !bytes.Equal(content, old.content) {
			return true
		}
	}
	return false
}

// Value is what a function makes of files. All methods may be called
// concurrently.
type Value[T any] struct {
	load func(*Files) (T, error)

	mu      sync.Mutex // of those that load
	files   *Files     // of the last attempt
	current atomic.Pointer[T]
	read    atomic.Pointer[[2]*Files] // of the last attempt that was good, and of the last
}

// Load makes a Value. load is called now, and whenever the files that it reads
// have changed.
func Load[T any](load func(*Files) (T, error)) (*Value[T], error) {
	v := &Value[T]{load: load, files: &Files{}}
	if err := v.reload(); err != nil {
		return nil, err
	}
	return v, nil
}

// Get returns what was made of the files when they were last good.
func (v *Value[T]) Get() T { return *v.current.Load() }

// Paths are those of the files of a kind that were read for what there is now, and at
// the last attempt to read them again.
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

// Refresh loads again if a file has changed since the last attempt. After an error
// the Value stays what it was. A nil Value never changes.
func (v *Value[T]) Refresh() (changed bool, err error) {
	if v == nil {
		return false, nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.files.changed() {
		return false, nil
	}
	err = v.reload()
	return err == nil, err
}

func (v *Value[T]) reload() error {
	files := &Files{read: make(map[string]*file), before: v.files.read}
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
