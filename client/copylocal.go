package client

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"execserver/internal/sys"
)

// localSide is the local side of a copy. An os.Root keeps it within its tree, even if links
// appear in it.
type localSide struct {
	c     *copying
	shown string // the path of the root that the caller gave
	root  *os.Root
	base  string // the name in root, if the copy is of a file; root is its directory
}

// local returns a side whose root is an existing directory, or a file. The caller must close
// the side.
func (c *copying) local(name string, directory bool) (*localSide, error) {
	s := &localSide{c: c, shown: name}
	dir := name
	if !directory {
		dir, s.base = filepath.Dir(name), filepath.Base(name)
	}
	var err error
	s.root, err = os.OpenRoot(dir)
	return s, err
}

func (s *localSide) close() { _ = s.root.Close() }

// at returns a name for root.
func (s *localSide) at(name string) string {
	if s.base != "" {
		return s.base
	}
	return filepath.FromSlash(name)
}

func (s *localSide) path(name string) string {
	if name == "." {
		return s.shown
	}
	return filepath.Join(s.shown, filepath.FromSlash(name))
}

func (s *localSide) list(dir string) iter.Seq2[*copyEntry, error] {
	return func(yield func(*copyEntry, error) bool) {
		file, err := s.root.Open(s.at(dir))
		if err != nil {
			yield(nil, err)
			return
		}
		names, err := file.Readdirnames(-1)
		_ = file.Close()
		slices.Sort(names)
		for _, base := range names {
			name := joinName(dir, base)
			e, err := s.stat(name)
			if isNotExist(err) {
				continue // just removed
			}
			if !yield(e, err) {
				return
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// stat describes a name itself. The entry is never nil.
func (s *localSide) stat(name string) (*copyEntry, error) {
	info, err := s.root.Lstat(s.at(name))
	if err != nil {
		return &copyEntry{name: name}, err
	}
	e := infoEntry(name, info)
	if e.isLink() {
		e.target, err = s.root.Readlink(s.at(name))
	}
	return e, err
}

func (s *localSide) mkdir(name string, mode fs.FileMode) error {
	err := s.root.Mkdir(s.at(name), mode)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if e, err := s.stat(name); err != nil || !e.mode.IsDir() {
		return &inUseError{cmp.Or[error](err, syscall.ENOTDIR)}
	}
	return nil
}

func (s *localSide) symlink(e, old *copyEntry) error {
	if old == nil {
		return s.root.Symlink(e.target, s.at(e.name))
	}
	hidden := s.hidden(e.name)
	if err := s.root.Symlink(e.target, hidden); err != nil {
		return err
	}
	err := s.root.Rename(hidden, s.at(e.name))
	if err != nil {
		_ = s.root.Remove(hidden) // the first error counts
	}
	return err
}

// hidden returns a new name in the directory of another one.
func (s *localSide) hidden(name string) string {
	return filepath.Join(filepath.Dir(s.at(name)), hiddenName())
}

func (s *localSide) change(name string, mode *fs.FileMode, modified *time.Time) (err error) {
	if mode != nil {
		err = s.root.Chmod(s.at(name), *mode)
	}
	if err == nil && modified != nil {
		err = s.root.Chtimes(s.at(name), time.Time{}, *modified)
	}
	return err
}

func (s *localSide) readAll(e *copyEntry) ([]byte, error) {
	file, err := s.openFile(e)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if e.size > smallFile {
		return nil, errGrew
	}
	data := make([]byte, e.size)
	if n, err := io.ReadFull(file, data); n < len(data) {
		if errors.Is(err, io.ErrUnexpectedEOF) || err == io.EOF {
			err = errShrunk
		}
		return nil, err
	}
	return data, nil
}

// openFile opens a regular file to read it, and updates e.
func (s *localSide) openFile(e *copyEntry) (*os.File, error) {
	// O_NONBLOCK: a FIFO may have replaced the file.
	file, err := s.root.OpenFile(s.at(e.name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = ErrSpecialFile
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	e.mode, e.size, e.modified = info.Mode(), info.Size(), info.ModTime()
	return file, nil
}

func (s *localSide) open(e *copyEntry) (blocks, error) {
	file, err := s.openFile(e)
	if err != nil {
		return nil, err
	}
	return localFile{file}, nil
}

// localFile is an open local file.
type localFile struct{ *os.File }

func (f localFile) readBlock(_ context.Context, offset int64, n int) ([]byte, bool, error) {
	block := make([]byte, n)
	n, err := f.ReadAt(block, offset)
	if err == io.EOF {
		return block[:n], true, nil
	}
	return block[:n], false, err
}

func (f localFile) writeBlock(_ context.Context, offset int64, block []byte) error {
	_, err := f.WriteAt(block, offset)
	return err
}

func (f localFile) close(context.Context) error { return f.Close() }

func (s *localSide) writeAll(data []byte, t *copyTarget) error {
	w, err := s.create(t)
	if err != nil {
		return err
	}
	t.size = int64(len(data))
	err = w.writeBlock(context.Background(), 0, data)
	if err == nil {
		err = w.commit()
	}
	if err != nil && w.abandon() {
		err = &incompleteError{err}
	}
	return err
}

func (s *localSide) create(t *copyTarget) (copyWriter, error) {
	w := &localWriter{side: s, target: t, name: s.at(t.name)}
	if t.inPlace() {
		err := w.openExisting()
		if !errors.Is(err, syscall.ETXTBSY) {
			return w, err
		}
		w.replaces = true
	}
	mode := fs.FileMode(0o666)
	switch {
	case t.mode != nil:
		mode = *t.mode
	case w.replaces:
		mode = 0o600
	}
	w.hidden, w.name = true, s.hidden(t.name)
	file, err := s.root.OpenFile(w.name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return nil, err
	}
	w.file.File = file
	if w.replaces {
		err = w.keepAttributes()
	}
	if err == nil && t.mode != nil { // the umask may have taken bits
		err = file.Chmod(mode)
	}
	if err != nil {
		w.abandon()
		return nil, err
	}
	return w, nil
}

// localWriter writes a local file.
type localWriter struct {
	side   *localSide
	target *copyTarget
	name   string
	hidden bool // name is hidden, because the file is new
	file   localFile
	wrote  atomic.Bool

	replaces bool // an existing file, from which a program is running
}

// keepAttributes gives the new file what the one has that it replaces.
func (w *localWriter) keepAttributes() error {
	root, name := w.side.root, w.side.at(w.target.name)
	before, err := root.Lstat(name)
	if err != nil {
		return err
	}
	old, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer old.Close()
	if info, err := old.Stat(); err != nil || !os.SameFile(before, info) { // a link has taken its place
		return cmp.Or[error](err, &inUseError{ErrSpecialFile})
	}
	return keepAttributes(w.file.File, old)
}

// openExisting opens the existing file, and reserves room for its new content, so that a full
// disk is noticed while the old content is still whole.
func (w *localWriter) openExisting() error {
	root := w.side.root
	before, err := root.Lstat(w.name)
	if err != nil {
		return err
	}
	if w.file.File, err = root.OpenFile(w.name, os.O_WRONLY|syscall.O_NONBLOCK, 0); err != nil {
		return err
	}
	info, err := w.file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular() || !os.SameFile(before, info): // a link has taken its place
		err = &inUseError{ErrSpecialFile}
	default:
		if err = sys.ReserveSpace(int(w.file.Fd()), w.target.size); err != nil {
			w.unreserve()
		}
	}
	if err != nil {
		_ = w.file.Close()
	}
	return err
}

// unreserve frees what lies beyond the end of the existing file. Another program may have appended
// to the file since it was opened.
func (w *localWriter) unreserve() {
	if info, err := w.file.Stat(); err == nil {
		_ = w.file.Truncate(info.Size())
	}
}

func (w *localWriter) writeBlock(ctx context.Context, offset int64, block []byte) error {
	w.wrote.Store(true)
	return w.file.writeBlock(ctx, offset, block)
}

func (w *localWriter) commit() error {
	t, root, name := w.target, w.side.root, w.side.at(w.target.name)
	var err error
	if !w.hidden {
		err = w.file.Truncate(t.size)
		if err == nil && t.mode != nil {
			err = w.file.Chmod(*t.mode)
		}
	}
	if err = errors.Join(err, w.file.Close()); err == nil && t.modified != nil {
		err = root.Chtimes(w.name, time.Time{}, *t.modified)
	}
	switch {
	case err != nil || !w.hidden:
		return err
	case w.replaces:
		if err = root.Rename(w.name, name); err == nil {
			w.side.c.replaced()
		}
		return err
	case t.old != nil: // a link
		return root.Rename(w.name, name)
	}
	err = root.Link(w.name, name)
	switch {
	case err == nil:
		return root.Remove(w.name)
	case errors.Is(err, fs.ErrExist):
		return &inUseError{fs.ErrExist}
	}
	// The file system has no hard links.
	if _, err := root.Lstat(name); !isNotExist(err) {
		return &inUseError{cmp.Or(err, fs.ErrExist)}
	}
	return root.Rename(w.name, name)
}

func (w *localWriter) abandon() bool {
	if !w.hidden && !w.wrote.Load() {
		w.unreserve()
	}
	_ = w.file.Close() // fails if commit has closed it
	if !w.hidden {
		return w.wrote.Load()
	}
	_ = w.side.root.Remove(w.name) // the first error counts
	return false
}
