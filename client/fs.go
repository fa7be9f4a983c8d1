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

	"execserver/protocol"
)

// blocks is an open file. A block has at most maxBlock bytes.
type blocks interface {
	readBlock(ctx context.Context, offset int64, n int) (block []byte, eof bool, err error)
	writeBlock(ctx context.Context, offset int64, block []byte) error
	close(ctx context.Context) error
}

// maxBlock is the size of the largest block that servers accept.
const maxBlock = 1 << 20

// FS is a directory of the machine with everything below it, as a writable fs.FS
// (PROTOCOL.md, "Files"). It implements fs.StatFS, fs.ReadDirFS, fs.ReadFileFS,
// fs.ReadLinkFS and fs.SubFS. Names are those of package fs, relative and with slashes. FS
// follows symbolic links, also out of the directory: it is no sandbox.
//
// Servers without the capability fsMetadata report no permissions: files have the mode
// 0644, directories 0755, and times of modification are in milliseconds. With them the
// methods that set modes and times or concern links return an *UnsupportedError.
//
// Methods may be called concurrently. Errors are *fs.PathError. The methods of package fs
// have no context; see [FS.WithContext].
type FS struct {
	env *Environment
	ctx context.Context
	dir string
}

var (
	_ fs.StatFS     = (*FS)(nil)
	_ fs.ReadDirFS  = (*FS)(nil)
	_ fs.ReadFileFS = (*FS)(nil)
	_ fs.ReadLinkFS = (*FS)(nil)
	_ fs.SubFS      = (*FS)(nil)
)

// FS returns the files below a directory of the machine, which need not exist. dir is a
// native path of the machine. A relative path is relative to Info.Dir, and "" means
// Info.Dir.
func (e *Environment) FS(dir string) *FS {
	return &FS{env: e, ctx: context.Background(), dir: e.Info().resolve(dir)}
}

// WithContext returns an FS whose operations, and those of the files that it opens, fail
// with the cause of ctx when ctx ends. Without it, only the end of the Environment unblocks
// them.
func (f *FS) WithContext(ctx context.Context) *FS { return &FS{f.env, ctx, f.dir} }

// osPath returns the path of a name on the machine.
func (f *FS) osPath(op, name string) (string, error) {
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
func (f *FS) do(op, name string, run func(osPath string) error) error {
	osPath, err := f.osPath(op, name)
	if err != nil {
		return err
	}
	if err := f.env.Err(); err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	if err := run(osPath); err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

// Open implements fs.FS (PROTOCOL.md, "File handles"). The client reads a regular file in
// blocks of up to 1 MiB, as needed. The file also is an io.ReaderAt, an io.Seeker and an
// io.WriterTo. ReadAt may be called concurrently. The file survives a reconnection, unless
// its size or time of modification has changed: then reading fails.
func (f *FS) Open(name string) (file fs.File, err error) {
	err = f.do("open", name, func(osPath string) error {
		meta, err := f.env.link.stat(f.ctx, osPath)
		if err != nil {
			return err
		}
		info := &fileInfo{path.Base(name), *meta}
		if meta.IsDirectory {
			file = &directory{fs: f, name: name, info: info}
			return nil
		}
		b, err := f.env.link.openFile(f.ctx, osPath, meta)
		if errors.Is(err, errors.ErrUnsupported) {
			var data []byte
			data, err = f.env.link.readFile(f.ctx, osPath)
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

// Stat implements fs.StatFS. It describes the target of a link.
func (f *FS) Stat(name string) (info fs.FileInfo, err error) {
	err = f.do("stat", name, func(osPath string) error {
		meta, err := f.env.link.stat(f.ctx, osPath)
		if err == nil {
			info = &fileInfo{path.Base(name), *meta}
		}
		return err
	})
	return info, err
}

// ReadDir implements fs.ReadDirFS. The entries are sorted by name, and describe links
// themselves. If a directory has more than 262,144 entries, or they take more than 64 MiB,
// ReadDir returns the first of them, in the order of their names, and ErrTruncated. Servers
// without the capability fsMetadata list only some tens of thousands.
//
// With servers without the capability fsMetadata, a link to a directory has the type
// fs.ModeSymlink, so that fs.WalkDir does not follow it. A link to a file is listed as a
// file, and a dangling link has the type fs.ModeIrregular.
func (f *FS) ReadDir(name string) (entries []fs.DirEntry, err error) {
	err = f.do("readdir", name, func(osPath string) error {
		list, err := f.env.link.readDir(f.ctx, osPath)
		links := f.linked(name, list)
		for i, e := range list {
			entries = append(entries, &dirEntry{f, path.Join(name, e.FileName), e, links[i]})
		}
		return err
	})
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// linkLooks is how many directories are examined at a time.
const linkLooks = 8

// linked reports which directories of a list are links, because a listing without details
// does not say so and a walk must not follow links in circles.
func (f *FS) linked(name string, list []protocol.DirectoryEntry) []bool {
	links := make([]bool, len(list))
	var wg sync.WaitGroup
	defer wg.Wait()
	looks := make(chan struct{}, linkLooks)
	for i, e := range list {
		osPath, err := f.osPath("stat", path.Join(name, e.FileName))
		if !e.IsDirectory || e.EntryDetails != nil || err != nil {
			continue
		}
		looks <- struct{}{}
		wg.Go(func() {
			defer func() { <-looks }()
			meta, err := f.env.link.stat(f.ctx, osPath)
			links[i] = err == nil && meta.IsSymlink
		})
	}
	return links
}

// ReadFile implements fs.ReadFileFS. If the file is too large for one message, ReadFile
// reads it in blocks.
func (f *FS) ReadFile(name string) (data []byte, err error) {
	err = f.do("open", name, func(osPath string) error {
		data, err = f.env.link.readFile(f.ctx, osPath)
		// The server refuses a file that is too large for one message.
		if err == nil || !errors.Is(err, protocol.ErrInvalidRequest) {
			return err
		}
		meta, statErr := f.env.link.stat(f.ctx, osPath)
		if statErr != nil || !meta.IsFile || meta.Size <= maxBlock {
			return err
		}
		b, openErr := f.env.link.openFile(f.ctx, osPath, meta)
		if openErr != nil {
			return err
		}
		file := &openFile{ctx: f.ctx, name: name, info: &fileInfo{path.Base(name), *meta}, blocks: b}
		data, err = io.ReadAll(file)
		return errors.Join(err, file.Close())
	})
	return data, err
}

// Sub implements fs.SubFS. The directory need not exist. The FS keeps the context of f.
func (f *FS) Sub(dir string) (fs.FS, error) {
	osPath, err := f.osPath("sub", dir)
	if err != nil {
		return nil, err
	}
	return &FS{f.env, f.ctx, osPath}, nil
}

// RealPath returns the absolute native path of a name with all links resolved. The name
// must exist.
func (f *FS) RealPath(name string) (real string, err error) {
	err = f.do("realpath", name, func(osPath string) error {
		real, err = f.env.link.realPath(f.ctx, osPath)
		return err
	})
	return real, err
}

// WriteFile makes data the content of a file, and creates the file if necessary
// (PROTOCOL.md, "fs/writeFile"). It writes an existing file in place, so that programs that have
// it open, watch it or mount it see the change; see ReplaceFile. If the connection breaks, it
// writes the file again. data has to fit into one message of the server; Create has no such
// bound.
func (f *FS) WriteFile(name string, data []byte) error {
	return f.do("write", name, func(osPath string) error {
		return f.env.link.writeFile(f.ctx, osPath, data, nil, false)
	})
}

// Create creates or empties a file, to be written from its beginning (PROTOCOL.md, "File
// handles"). Write collects blocks of 1 MiB, so a later Write or Close may report the
// error of an earlier Write, and only Close writes the rest. Write and Close must not be
// called concurrently. If the connection breaks, it is unknown how much was written; the
// error matches a *DisconnectedError. With servers without the capability
// fileWriteStreaming, Close writes everything, up to 48 MiB, and creates the file.
func (f *FS) Create(name string) (file io.WriteCloser, err error) {
	err = f.do("create", name, func(osPath string) error {
		if !f.env.has(capFileWriting) {
			file = &wholeWriter{fs: f, name: name, osPath: osPath}
			return nil
		}
		b, err := f.env.link.openToWrite(f.ctx, osPath, protocol.OpenReplace, nil)
		file = &fileWriter{ctx: f.ctx, name: name, blocks: b}
		return err
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

// Mkdir creates a directory (PROTOCOL.md, "fs/createDirectory"). The error matches
// fs.ErrExist if there is a file or directory of that name. If the connection breaks,
// Mkdir, Remove and Copy are not repeated, and the error matches a *DisconnectedError.
func (f *FS) Mkdir(name string) error {
	return f.do("mkdir", name, func(osPath string) error { return f.env.link.mkdir(f.ctx, osPath, false, nil) })
}

// MkdirAll creates a directory with all its parents. It accepts an existing directory. If
// the connection breaks, the client repeats it.
func (f *FS) MkdirAll(name string) error {
	return f.do("mkdir", name, func(osPath string) error { return f.env.link.mkdir(f.ctx, osPath, true, nil) })
}

// Remove removes a file, a link, or an empty directory (PROTOCOL.md, "fs/remove").
func (f *FS) Remove(name string) error {
	return f.do("remove", name, func(osPath string) error { return f.env.link.remove(f.ctx, osPath, false) })
}

// RemoveAll removes a file or a directory with everything in it. It accepts a name that
// does not exist. If the connection breaks, the client repeats it.
func (f *FS) RemoveAll(name string) error {
	return f.do("remove", name, func(osPath string) error { return f.env.link.remove(f.ctx, osPath, true) })
}

// Copy copies a file, or a directory with everything in it, within the machine
// (PROTOCOL.md, "fs/copy").
func (f *FS) Copy(from, to string) error {
	osPath, err := f.osPath("copy", to)
	if err != nil {
		return err
	}
	return f.do("copy", from, func(source string) error {
		return f.env.link.copyFile(f.ctx, source, osPath, true)
	})
}
