package trusted

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
)

// Files reads files for Load, and remembers what was in them.
type Files struct {
	read  map[string]*file
	once  map[string]*file // what can be read once only, by all attempts
	seen  map[string]*file // what two looks have found already
	first bool             // the program starts
}

// file is one that was read, or could not be.
type file struct {
	kind    Kind
	content []byte
	again   bool // it can be read again
	err     error
}

func (f *file) failure() string {
	if f.err == nil {
		return ""
	}
	return f.err.Error()
}

// Read is the function Read. A pipe is read once, at the start; its content is
// remembered.
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

// look reads again what can be read again.
func (f *Files) look() map[string]*file {
	again, now := &Files{}, make(map[string]*file)
	for path, old := range f.read {
		if f.once[path] == nil {
			now[path] = again.readNow(path, old.kind)
		}
	}
	return now
}

// differ reports whether one of the files that were found now is not what it was.
func differ(now, before map[string]*file) bool {
	for path, file := range now {
		if old := before[path]; old == nil || file.failure() != old.failure() || !bytes.Equal(file.content, old.content) {
			return true
		}
	}
	return false
}

// Value is what a function makes of files. All methods may be called
// concurrently.
type Value[T any] struct {
	load func(*Files) (T, error)

	mu      sync.Mutex       // of those that load
	files   *Files           // of the last attempt
	found   map[string]*file // by the last look, where that was something else
	current atomic.Pointer[T]
	read    atomic.Pointer[[2]*Files] // of the last attempt that was good, and of the last
}

// Load makes a Value. load is called now, and whenever the files that it reads
// have changed.
func Load[T any](load func(*Files) (T, error)) (*Value[T], error) {
	v := &Value[T]{load: load, files: &Files{once: make(map[string]*file)}}
	if err := v.reload(nil); err != nil {
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
func (v *Value[T]) Refresh() (changed bool, err error) { return v.refresh(true) }

// Look is Refresh that believes a change only when the Look before has found the same:
// somebody may be writing the files at this moment.
func (v *Value[T]) Look() (changed bool, err error) { return v.refresh(false) }

func (v *Value[T]) refresh(atOnce bool) (changed bool, err error) {
	if v == nil {
		return false, nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.found
	v.found = nil
	now := v.files.look()
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

// reload loads from what was seen in the files, and reads what else is needed.
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
