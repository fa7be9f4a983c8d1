package client

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"execserver/protocol"
)

// files is what an FS needs of its machine. Paths are native there and absolute.
type files interface {
	stat(ctx context.Context, path string) (*protocol.FileMetadata, error)
	readFile(ctx context.Context, path string) ([]byte, error)
	readDir(ctx context.Context, path string) ([]protocol.DirectoryEntry, error)
	realPath(ctx context.Context, path string) (string, error)
	writeFile(ctx context.Context, path string, data []byte) error
	mkdir(ctx context.Context, path string, all bool) error
	remove(ctx context.Context, path string, all bool) error
	copyFile(ctx context.Context, from, to string, all bool) error
	openFile(ctx context.Context, path string, meta *protocol.FileMetadata) (blocks, error)
	createFile(ctx context.Context, path string) (blocks, error)
}

// blocks is an open file. Blocks are at most maxBlock long.
type blocks interface {
	readBlock(ctx context.Context, offset int64, n int) (block []byte, eof bool, err error)
	writeBlock(ctx context.Context, offset int64, block []byte) error
	close(ctx context.Context) error
}

// maxBlock is the largest block that servers take.
const maxBlock = 1 << 20

// FS is a directory of the machine with everything below, as an fs.FS that can be
// written, too. It implements fs.StatFS, fs.ReadDirFS, fs.ReadFileFS and
// fs.SubFS; names are those of package fs, relative and with slashes. Symbolic
// links are followed, also out of the directory. The protocol does not tell
// permissions: files have the mode 0644, directories 0755. Methods may be called
// concurrently; errors are *fs.PathError.
type FS struct {
	env *Environment
	ctx context.Context
	dir string
}

var (
	_ fs.StatFS     = (*FS)(nil)
	_ fs.ReadDirFS  = (*FS)(nil)
	_ fs.ReadFileFS = (*FS)(nil)
	_ fs.SubFS      = (*FS)(nil)
)

// FS returns the files below a directory of the machine, which need not exist.
// Relative paths are relative to Info.Dir, which is also what "" means.
func (e *Environment) FS(dir string) *FS {
	return &FS{env: e, ctx: context.Background(), dir: e.Info().resolve(dir)}
}

// WithContext returns an FS whose operations, and those of the files that it
// opens, end with ctx: package fs leaves no other way to say so.
func (f *FS) WithContext(ctx context.Context) *FS { return &FS{f.env, ctx, f.dir} }

// native is the path of a name on the machine.
func (f *FS) native(op, name string) (string, error) {
	if !fs.ValidPath(name) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	if f.dir == "" {
		return "", &fs.PathError{Op: op, Path: name, Err: errDirGone}
	}
	if f.env.Info().goos() == "windows" {
		return strings.TrimSuffix(f.dir+`\`+strings.ReplaceAll(name, "/", `\`), `\.`), nil
	}
	return path.Join(f.dir, name), nil
}

// do runs an operation on a name.
func (f *FS) do(op, name string, run func(native string) error) error {
	native, err := f.native(op, name)
	if err != nil {
		return err
	}
	if err := f.env.Err(); err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	if err := run(native); err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

// Open implements fs.FS. A regular file is read in blocks as it is needed; it also
// is an io.ReaderAt, an io.Seeker and an io.WriterTo, and survives a lost
// connection as long as the file does not change meanwhile.
func (f *FS) Open(name string) (file fs.File, err error) {
	err = f.do("open", name, func(native string) error {
		meta, err := f.env.back.stat(f.ctx, native)
		if err != nil {
			return err
		}
		info := &fileInfo{path.Base(name), *meta}
		if meta.IsDirectory {
			file = &directory{fs: f, name: name, info: info}
			return nil
		}
		b, err := f.env.back.openFile(f.ctx, native, meta)
		if errors.Is(err, errors.ErrUnsupported) {
			var data []byte
			data, err = f.env.back.readFile(f.ctx, native)
			b = wholeFile(data)
		}
		file = &openFile{ctx: f.ctx, name: name, info: info, blocks: b}
		return err
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

// Stat implements fs.StatFS.
func (f *FS) Stat(name string) (info fs.FileInfo, err error) {
	err = f.do("stat", name, func(native string) error {
		meta, err := f.env.back.stat(f.ctx, native)
		if err == nil {
			info = &fileInfo{path.Base(name), *meta}
		}
		return err
	})
	return info, err
}

// ReadDir implements fs.ReadDirFS. A link to a directory has the type
// fs.ModeSymlink, so that fs.WalkDir does not follow it. A link to a file is listed as that; one that
// leads nowhere has the type fs.ModeIrregular. Of a directory with more entries than a
// server lists (more than a hundred thousand) there are some, and ErrTruncated.
func (f *FS) ReadDir(name string) (entries []fs.DirEntry, err error) {
	err = f.do("readdir", name, func(native string) error {
		list, err := f.env.back.readDir(f.ctx, native)
		links := f.linked(name, list)
		for i, e := range list {
			entries = append(entries, &dirEntry{f, path.Join(name, e.FileName), e, links[i]})
		}
		return err
	})
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// linkLooks is how many directories are looked at at a time.
const linkLooks = 8

// linked reports which directories of a list are links, which a listing does not
// tell: whoever walks a tree must not follow them in circles.
func (f *FS) linked(name string, list []protocol.DirectoryEntry) []bool {
	links := make([]bool, len(list))
	var wg sync.WaitGroup
	defer wg.Wait()
	looks := make(chan struct{}, linkLooks)
	for i, e := range list {
		native, err := f.native("stat", path.Join(name, e.FileName))
		if !e.IsDirectory || err != nil {
			continue
		}
		looks <- struct{}{}
		wg.Go(func() {
			defer func() { <-looks }()
			meta, err := f.env.back.stat(f.ctx, native)
			links[i] = err == nil && meta.IsSymlink
		})
	}
	return links
}

// ReadFile implements fs.ReadFileFS.
func (f *FS) ReadFile(name string) (data []byte, err error) {
	err = f.do("open", name, func(native string) error {
		data, err = f.env.back.readFile(f.ctx, native)
		// A file that is too large for one message is refused.
		if err == nil || !errors.Is(err, protocol.ErrInvalidRequest) {
			return err
		}
		meta, statErr := f.env.back.stat(f.ctx, native)
		if statErr != nil || !meta.IsFile || meta.Size <= maxBlock {
			return err
		}
		b, openErr := f.env.back.openFile(f.ctx, native, meta)
		if openErr != nil {
			return err
		}
		file := &openFile{ctx: f.ctx, name: name, info: &fileInfo{path.Base(name), *meta}, blocks: b}
		data, err = io.ReadAll(file)
		return errors.Join(err, file.Close())
	})
	return data, err
}

// Sub implements fs.SubFS.
func (f *FS) Sub(dir string) (fs.FS, error) {
	native, err := f.native("sub", dir)
	if err != nil {
		return nil, err
	}
	return &FS{f.env, f.ctx, native}, nil
}

// RealPath returns the native path of a name with all links resolved.
func (f *FS) RealPath(name string) (real string, err error) {
	err = f.do("realpath", name, func(native string) error {
		real, err = f.env.back.realPath(f.ctx, native)
		return err
	})
	return real, err
}

// WriteFile makes data the content of a file, which is created if need be. When
// the connection breaks meanwhile it is written again.
func (f *FS) WriteFile(name string, data []byte) error {
	return f.do("write", name, func(native string) error {
		return f.env.back.writeFile(f.ctx, native, data)
	})
}

// Create empties or creates a file to be written from its beginning. Write errors
// may be told by a later Write or by Close. With servers without the capability
// fileWriteStreaming everything is written by Close, and up to 48 MiB.
// What was written when the connection breaks is not known: the error is a
// *DisconnectedError.
func (f *FS) Create(name string) (file io.WriteCloser, err error) {
	err = f.do("create", name, func(native string) error {
		if !f.env.has(capFileWriting) {
			file = &wholeWriter{fs: f, name: name, native: native}
			return nil
		}
		b, err := f.env.back.createFile(f.ctx, native)
		file = &fileWriter{ctx: f.ctx, name: name, blocks: b}
		return err
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

// Mkdir creates a directory.
func (f *FS) Mkdir(name string) error {
	return f.do("mkdir", name, func(native string) error { return f.env.back.mkdir(f.ctx, native, false) })
}

// MkdirAll creates a directory with all its parents, unless it exists.
func (f *FS) MkdirAll(name string) error {
	return f.do("mkdir", name, func(native string) error { return f.env.back.mkdir(f.ctx, native, true) })
}

// Remove removes a file, a link, or an empty directory.
func (f *FS) Remove(name string) error {
	return f.do("remove", name, func(native string) error { return f.env.back.remove(f.ctx, native, false) })
}

// RemoveAll removes whatever has the name, with everything in it, unless it does
// not exist.
func (f *FS) RemoveAll(name string) error {
	return f.do("remove", name, func(native string) error { return f.env.back.remove(f.ctx, native, true) })
}

// Copy copies a file, or a directory with everything in it, on the machine.
func (f *FS) Copy(from, to string) error {
	native, err := f.native("copy", to)
	if err != nil {
		return err
	}
	return f.do("copy", from, func(source string) error {
		return f.env.back.copyFile(f.ctx, source, native, true)
	})
}

// fileInfo implements fs.FileInfo.
type fileInfo struct {
	name string
	meta protocol.FileMetadata
}

func (i *fileInfo) Name() string       { return i.name }
func (i *fileInfo) Size() int64        { return i.meta.Size }
func (i *fileInfo) Mode() fs.FileMode  { return mode(i.meta.IsDirectory, i.meta.IsFile) }
func (i *fileInfo) ModTime() time.Time { return time.UnixMilli(i.meta.ModifiedAtMs) }
func (i *fileInfo) IsDir() bool        { return i.meta.IsDirectory }
func (i *fileInfo) Sys() any           { return i.meta }

func mode(directory, file bool) fs.FileMode {
	switch {
	case directory:
		return fs.ModeDir | 0o755
	case file:
		return 0o644
	}
	return fs.ModeIrregular | 0o644
}

// dirEntry implements fs.DirEntry.
type dirEntry struct {
	fs   *FS
	path string // as fs has it
	wire protocol.DirectoryEntry
	link bool // to a directory
}

func (e *dirEntry) Name() string   { return e.wire.FileName }
func (e *dirEntry) IsDir() bool    { return e.wire.IsDirectory && !e.link }
func (e *dirEntry) String() string { return fs.FormatDirEntry(e) }

func (e *dirEntry) Type() fs.FileMode {
	if e.link {
		return fs.ModeSymlink
	}
	return mode(e.wire.IsDirectory, e.wire.IsFile).Type()
}

func (e *dirEntry) Info() (fs.FileInfo, error) {
	info, err := e.fs.Stat(e.path)
	if err == nil && e.link {
		return linkInfo{info}, nil
	}
	return info, err
}

// linkInfo describes a link by the directory that it leads to.
type linkInfo struct{ fs.FileInfo }

func (linkInfo) Mode() fs.FileMode { return fs.ModeSymlink | 0o777 }
func (linkInfo) IsDir() bool       { return false }

// directory is an open directory.
type directory struct {
	fs      *FS
	name    string
	info    *fileInfo
	entries []fs.DirEntry // nil until the first ReadDir
	part    error         // the entries are not all, and why
	read    bool
	closed  bool
}

func (d *directory) Stat() (fs.FileInfo, error) { return d.info, nil }

func (d *directory) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.name, Err: errIsDirectory}
}

func (d *directory) Close() error {
	if d.closed {
		return &fs.PathError{Op: "close", Path: d.name, Err: fs.ErrClosed}
	}
	d.closed = true
	return nil
}

// ReadDir implements fs.ReadDirFile.
func (d *directory) ReadDir(n int) ([]fs.DirEntry, error) {
	if d.closed {
		return nil, &fs.PathError{Op: "readdir", Path: d.name, Err: fs.ErrClosed}
	}
	if !d.read {
		entries, err := d.fs.ReadDir(d.name)
		if err != nil && !errors.Is(err, ErrTruncated) {
			return nil, err
		}
		d.entries, d.part, d.read = entries, err, true
	}
	switch {
	case n <= 0:
		entries := d.entries
		d.entries = nil
		return entries, d.part
	case len(d.entries) == 0 && d.part != nil:
		return nil, d.part
	case len(d.entries) == 0:
		return nil, io.EOF
	}
	n = min(n, len(d.entries))
	entries := d.entries[:n:n]
	d.entries = d.entries[n:]
	return entries, nil
}
