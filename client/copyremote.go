package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"execserver/protocol"
)

// remoteSide is the side of a copy on the machine of the server.
type remoteSide struct {
	c     *copying
	conns *connManager
	files remoteFiles
	root  string // a path of the machine
}

func (c *copying) remote(root string) *remoteSide {
	return &remoteSide{c: c, conns: c.env.conns, files: c.env.files, root: root}
}

func (s *remoteSide) separator() string {
	if s.conns.machine.goos() == "windows" {
		return `\`
	}
	return "/"
}

func (s *remoteSide) path(name string) string {
	if name == "." {
		return s.root
	}
	return strings.TrimSuffix(s.root, s.separator()) + s.separator() + strings.ReplaceAll(name, "/", s.separator())
}

// split divides a path into its directory and its last name.
func (s *remoteSide) split(path string) (dir, base string) {
	separators := "/"
	if s.conns.machine.goos() == "windows" {
		separators = `/\`
	}
	at := strings.LastIndexAny(path, separators)
	return path[:max(at, 1)], path[at+1:]
}

// resolve resolves the links in the path of a target, and returns the existing entry, or nil.
func (s *remoteSide) resolve() (*copyEntry, error) {
	real, err := s.files.realPath(s.c.ctx, s.root)
	switch {
	case err == nil:
		s.root, s.files.resolved = real, true
	case isNotExist(err):
		dir, base := s.split(s.root)
		if dir, err = s.files.realPath(s.c.ctx, dir); err != nil {
			return nil, err
		}
		s.root = dir
		s.root, s.files.resolved = s.path(base), true
	case !errors.Is(err, errors.ErrUnsupported):
		return nil, err
	}
	e, err := s.stat(".", false)
	if isNotExist(err) {
		return nil, nil
	}
	return e, err
}

// stat describes a name. With follow, it describes the target of a link.
func (s *remoteSide) stat(name string, follow bool) (*copyEntry, error) {
	m, err := s.files.metadata(s.c.ctx, s.path(name), s.c.details && !follow)
	if err != nil {
		return nil, err
	}
	info := &fileInfo{meta: *m}
	e := &copyEntry{name: name, mode: info.Mode(), size: info.Size(), modified: info.ModTime()}
	if m.FileDetails != nil {
		e.target, e.details = m.Text(), true
	} else if m.IsSymlink && m.IsDirectory && !follow {
		e.mode = fs.ModeSymlink
	}
	return e, nil
}

func (s *remoteSide) list(dir string) iter.Seq2[*copyEntry, error] {
	return func(yield func(*copyEntry, error) bool) {
		params := s.files.listing(s.path(dir), s.c.details)
		for last := ""; ; {
			var page protocol.ReadDirectoryResult
			if err := s.conns.query(s.c.ctx, protocol.MethodReadDirectory, params, &page); err != nil {
				yield(nil, err)
				return
			}
			entries := s.entries(dir, page.Entries)
			if len(entries) > 0 && last != "" && entries[0].name <= last {
				yield(nil, &answerError{protocol.MethodReadDirectory, errors.New("the pages are not in the order of the names")})
				return
			}
			for some := range slices.Chunk(entries, 64) {
				errs := s.describe(dir, some)
				for i, e := range some {
					if !yield(e, errs[i]) {
						return
					}
					last = e.name
				}
			}
			next, err := following(params, &page)
			if err != nil {
				yield(nil, err)
			}
			if next == nil {
				return
			}
			params.After = next
		}
	}
}

// entries converts a page of a listing, and sorts it.
func (s *remoteSide) entries(dir string, list []protocol.DirectoryEntry) []*copyEntry {
	entries := make([]*copyEntry, len(list))
	for i, wire := range list {
		e := &copyEntry{name: joinName(dir, s.files.exactName(wire)), mode: mode(wire.IsDirectory, wire.IsFile)}
		if d := wire.EntryDetails; d != nil {
			e.mode, e.size, e.target, e.details = detailedMode(d.Kind, d.Mode), max(d.Size, 0), d.Text(), true
			e.modified = time.UnixMilli(d.ModifiedAtMs).Add(time.Duration(min(d.ModifiedNs, 999_999)))
		}
		entries[i] = e
	}
	slices.SortStableFunc(entries, func(a, b *copyEntry) int { return strings.Compare(a.name, b.name) })
	return entries
}

// describe checks entries of a directory of the source, and returns an error or nil for each. If
// the listings of the server lack sizes and links, it asks for each entry.
func (s *remoteSide) describe(dir string, entries []*copyEntry) []error {
	errs := make([]error, len(entries))
	if s != s.c.from {
		return errs
	}
	var asking errgroup.Group
	for i, e := range entries {
		base := e.name // the name as listed, which may have slashes
		if dir != "." {
			base = strings.TrimPrefix(base, dir+"/")
		}
		switch {
		case !mayName(base):
			errs[i] = fmt.Errorf("the server lists a file with the invalid name %q", base)
		case e.isLink() && (e.target == "" || strings.ContainsRune(e.target, 0)):
			errs[i] = fmt.Errorf("the server lists a link with the invalid target %q", e.target)
		case !s.c.details:
			asking.Go(func() error {
				found, err := s.stat(e.name, false)
				if errs[i] = err; err == nil {
					*e = *found
				}
				if err == nil && e.isLink() {
					errs[i] = &UnsupportedError{"copy a link to a directory", capMetadata}
				}
				return nil
			})
		}
	}
	_ = asking.Wait()
	return errs
}

// mayName reports whether a name from a listing is a valid name in a local directory, and
// nothing else.
func mayName(name string) bool {
	return name != "." && !strings.ContainsAny(name, "/\x00") && !strings.ContainsRune(name, filepath.Separator) && filepath.IsLocal(name)
}

// mkdir accepts an existing directory, so that the request can be repeated.
func (s *remoteSide) mkdir(name string, mode fs.FileMode) error {
	var bits *protocol.FileMode
	if s.c.modes {
		bits = modeBits(mode)
	}
	return s.files.mkdir(s.c.ctx, s.path(name), true, bits)
}

func (s *remoteSide) symlink(e, old *copyEntry) error {
	if !s.c.details {
		return &UnsupportedError{"make a link", capMetadata}
	}
	path := s.path(e.name)
	if old != nil {
		path = s.hidden(e.name)
	}
	_, err := s.conns.repeat(s.c.ctx, protocol.MethodSymlink, s.files.symlinkParams(path, e.target))
	if errors.Is(err, fs.ErrExist) && s.isLink(path, e.target) { // the request was repeated
		err = nil
	}
	if err != nil || old == nil {
		return err
	}
	if err = s.rename(path, e.name, true); err != nil {
		s.c.cleanup(func(ctx context.Context) { s.remove(ctx, path) })
	}
	return err
}

// isLink reports whether a path is a link to text.
func (s *remoteSide) isLink(path, text string) bool {
	m, err := s.files.metadata(s.c.ctx, path, true)
	return err == nil && m.FileDetails != nil && m.Kind == protocol.KindSymlink && m.Text() == text
}

// hidden returns the path of a hidden file in the directory of a name.
func (s *remoteSide) hidden(name string) string {
	dir, _ := s.split(s.path(name))
	return strings.TrimSuffix(dir, s.separator()) + s.separator() + hiddenName()
}

// rename gives a hidden file its name. With replace, the name may be in use, even by a link.
func (s *remoteSide) rename(path, name string, replace bool) error {
	params := s.files.renameParams(path, s.path(name), replace)
	for repeated := false; ; repeated = true {
		_, err := s.conns.try(s.c.ctx, protocol.MethodRename, params)
		switch {
		case repeated && isNotExist(err):
			return nil // an earlier request has renamed it
		case errors.Is(err, fs.ErrExist):
			return &inUseError{fs.ErrExist}
		case !errors.As(err, new(*brokenError)):
			return err
		}
	}
}

// remove tries to remove a hidden file.
func (s *remoteSide) remove(ctx context.Context, path string) {
	params := s.files.removeParams(path, false)
	params.Force = true
	_, _ = s.conns.repeat(ctx, protocol.MethodRemove, params)
}

func (s *remoteSide) change(name string, mode *fs.FileMode, modified *time.Time) error {
	return s.set(s.path(name), mode, modified, nil)
}

func (s *remoteSide) set(path string, mode *fs.FileMode, modified *time.Time, size *uint64) error {
	params := protocol.SetMetadataParams{Size: size}
	if mode != nil {
		params.Mode = modeBits(*mode)
	}
	if modified != nil {
		params.FileTime = protocol.NewFileTime(*modified)
	}
	return s.files.setMetadata(s.c.ctx, path, params)
}

// maxGrown bounds a small file that has grown, because many answers may be in memory.
const maxGrown = 8 * smallFile

func (s *remoteSide) readAll(e *copyEntry) ([]byte, error) {
	// FileParams would add the defaults to every request, and small files are many.
	params := struct {
		Path protocol.Path `json:"path"`
	}{s.files.file(s.path(e.name)).Path}
	for {
		raw, data, err := s.conns.tryBulk(s.c.ctx, protocol.MethodReadFile, params)
		switch {
		case errors.As(err, new(*brokenError)):
			continue
		case err != nil:
			return nil, err
		case len(raw)+len(data) > maxGrown:
			return nil, errGrew
		}
		var result protocol.ReadFileResult
		err = understandBulk(protocol.MethodReadFile, raw, data, &result)
		return result.Data, err
	}
}

func (s *remoteSide) open(e *copyEntry) (blocks, error) {
	path := s.path(e.name)
	meta := protocol.FileMetadata{IsFile: true, Size: e.size, ModifiedAtMs: e.modified.UnixMilli()}
	if e.details {
		meta.FileDetails = &protocol.FileDetails{Kind: protocol.KindFile, Mode: *modeBits(e.mode), ModifiedNs: uint32(e.modified.Nanosecond() % 1e6)}
	}
	source, err := s.files.openFile(s.c.ctx, path, &meta)
	if errors.Is(err, errors.ErrUnsupported) {
		var data []byte
		data, err = s.files.readFile(s.c.ctx, path)
		return wholeFile(data), err
	}
	return source, err
}

func (s *remoteSide) writeAll(data []byte, t *copyTarget) error {
	if t.old.isLink() && s.conns.has(capRename) { // the request would not replace it
		return s.writeParts(data, t)
	}
	params := s.files.writeParams(s.path(t.name), data)
	if t.mode != nil {
		params.Mode = modeBits(*t.mode)
	}
	if t.modified != nil {
		params.FileTime = protocol.NewFileTime(*t.modified)
	}
	return s.write(protocol.MethodWriteFile, params)
}

// write sends a request that writes a file, and counts a replaced file.
func (s *remoteSide) write(method string, params any) error {
	raw, err := s.conns.repeat(s.c.ctx, method, params)
	if err != nil {
		return err
	}
	var result protocol.WriteFileResult
	if err := understand(method, raw, &result); err != nil {
		return err
	}
	if result.Replaced {
		s.c.replaced()
	}
	return nil
}

// writeParts writes a small file by the requests for a large one.
func (s *remoteSide) writeParts(data []byte, t *copyTarget) error {
	w, err := s.create(t)
	if err != nil {
		return err
	}
	if len(data) > 0 {
		err = w.writeBlock(s.c.ctx, 0, data)
	}
	if err == nil {
		err = w.commit()
	}
	if err != nil && w.abandon() {
		err = &incompleteError{err}
	}
	return err
}

func (s *remoteSide) create(t *copyTarget) (copyWriter, error) {
	w := &remoteWriter{side: s, target: t, path: s.path(t.name), mode: protocol.OpenUpdate}
	has := s.conns.has
	switch {
	case !has(capFileWriting) && t.size > maxWhole:
		return nil, fmt.Errorf("the server takes files of up to %d bytes: %w", maxWhole, &UnsupportedError{"write a large file", capFileWriting})
	case !has(capFileWriting):
		return &wholeCopy{s, t, make([]byte, t.size)}, nil
	case !s.c.details || !has(capRename):
		w.mode = protocol.OpenReplace
	case !t.inPlace():
		w.hide()
	}
	err := w.open()
	if errors.Is(err, syscall.ETXTBSY) && w.mode == protocol.OpenUpdate && !w.hidden {
		w.hide()
		w.replaces = true
		err = w.open()
	}
	return w, err
}

// remoteWriter writes a file of the machine.
type remoteWriter struct {
	side   *remoteSide
	target *copyTarget
	path   string
	hidden bool // path has a hidden name
	mode   protocol.OpenMode
	handle *handle
	wrote  atomic.Bool

	replaces bool // an existing file, from which a program is running
}

func (w *remoteWriter) hide() { w.hidden, w.path = true, w.side.hidden(w.target.name) }

// permissions returns the mode of a new file, or nil for the default.
func (w *remoteWriter) permissions() *fs.FileMode {
	if w.target.mode == nil && w.replaces && w.side.c.modes {
		return &w.target.old.mode
	}
	return w.target.mode
}

func (w *remoteWriter) open() error {
	s := w.side
	w.handle = &handle{files: s.files, path: w.path, mode: w.mode}
	switch {
	case w.hidden && w.permissions() != nil:
		// 0o200: the client opens the file again if the connection breaks.
		w.handle.create = modeBits(w.permissions().Perm() | 0o200)
	case w.mode == protocol.OpenUpdate && !w.hidden:
		meta, err := s.files.stat(s.c.ctx, w.path)
		if err != nil {
			return err
		}
		w.handle.meta = meta
	}
	w.wrote.Store(w.mode == protocol.OpenReplace) // which empties the file
	return w.handle.open(s.c.ctx)
}

func (w *remoteWriter) writeBlock(ctx context.Context, offset int64, block []byte) error {
	w.wrote.Store(true)
	return w.handle.writeBlock(ctx, offset, block)
}

func (w *remoteWriter) commit() error {
	s, t := w.side, w.target
	err := w.handle.close(s.c.ctx)
	switch {
	case err != nil || !s.c.details:
		return err
	case w.hidden:
		err = s.set(w.path, w.permissions(), t.modified, nil)
	default:
		size := uint64(t.size)
		err = s.set(w.path, t.mode, t.modified, &size)
	}
	if err != nil || !w.hidden {
		return err
	}
	if w.replaces {
		return w.replace()
	}
	return s.rename(w.path, t.name, t.old != nil)
}

// replace makes the server copy the new file over the old one, because only the server can keep
// the owner and the attributes.
func (w *remoteWriter) replace() error {
	s, t := w.side, w.target
	err := s.write(protocol.MethodCopy, s.files.copyParams(w.path, s.path(t.name), false))
	if err != nil {
		return err
	}
	s.c.cleanup(func(ctx context.Context) { s.remove(ctx, w.path) })
	return s.set(s.path(t.name), nil, t.modified, nil)
}

func (w *remoteWriter) abandon() bool {
	w.side.c.cleanup(func(ctx context.Context) {
		_ = w.handle.close(ctx)
		if w.hidden {
			w.side.remove(ctx, w.path)
		}
	})
	return !w.hidden && w.wrote.Load()
}

// wholeCopy collects the blocks of a file for servers that only write whole files.
type wholeCopy struct {
	side   *remoteSide
	target *copyTarget
	data   []byte
}

func (w *wholeCopy) writeBlock(_ context.Context, offset int64, block []byte) error {
	copy(w.data[offset:], block)
	return nil
}

func (w *wholeCopy) commit() error { return w.side.writeAll(w.data, w.target) }

func (w *wholeCopy) abandon() bool { return false }
