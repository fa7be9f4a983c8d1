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

// blocks is an open file. A block has at most maxBlock bytes.
type blocks interface {
	readBlock(ctx context.Context, offset int64, n int) (block []byte, eof bool, err error)
	writeBlock(ctx context.Context, offset int64, block []byte) error
	close(ctx context.Context) error
}

// maxBlock is the size of the largest block that servers accept.
const maxBlock = 1 << 20

// FS is a writable file system rooted at a directory of the machine. It implements fs.FS, fs.StatFS,
// fs.ReadDirFS, fs.ReadFileFS, fs.ReadLinkFS and fs.SubFS. Names are slash-separated and relative,
// without "..", as in package fs. FS follows symbolic links, even out of the directory: it is not a
// sandbox.
//
// New files have the mode 0666 and new directories 0777, less the server's umask, unless a method
// takes a mode. If the connection breaks, Copy, Mkdir, Remove, Rename and Symlink are not repeated,
// and the error matches an *InterruptedError. The other methods are repeated; for Create, see there.
//
// If the server lacks the capability fsMetadata, files have the mode 0644, directories 0755, and
// modification times are in milliseconds. The methods that set modes or times, or that concern
// links, then return an *UnsupportedError.
//
// The methods may be called concurrently. Errors are *fs.PathError, unless stated otherwise. For a
// context, see [FS.WithContext].
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

// WithContext returns an FS whose methods, and those of the files that it opens, fail with the cause
// of ctx when ctx is done. Without a context, only the end of the Environment unblocks them.
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

// Open implements fs.FS. A regular file also implements io.ReaderAt, io.Seeker and io.WriterTo. It
// is read in blocks of up to 1 MiB, as needed, and ReadAt may be called concurrently. Reading
// continues after a reconnection, but fails if the size or modification time of the file has
// changed.
func (f *FS) Open(name string) (file fs.File, err error) {
	err = f.do("open", name, func(osPath string) error {
		meta, err := f.env.files.stat(f.ctx, osPath)
		if err != nil {
			return err
		}
		info := &fileInfo{path.Base(name), *meta}
		if meta.IsDirectory {
			file = &directory{fs: f, name: name, info: info}
			return nil
		}
		b, err := f.env.files.openFile(f.ctx, osPath, meta)
		if errors.Is(err, errors.ErrUnsupported) {
			var data []byte
			data, err = f.env.files.readFile(f.ctx, osPath)
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
		meta, err := f.env.files.stat(f.ctx, osPath)
		if err == nil {
			info = &fileInfo{path.Base(name), *meta}
		}
		return err
	})
	return info, err
}

// ReadDir implements fs.ReadDirFS. The entries are sorted by name, and describe links themselves. If
// a directory has more than 262,144 entries, or they take more than 64 MiB, ReadDir returns the
// first of them by name, and ErrTruncated. Servers without the capability fsMetadata list only some
// tens of thousands.
//
// Without fsMetadata, a link to a directory has the type fs.ModeSymlink, so that fs.WalkDir does not
// follow it. A link to a file is listed as a file, and a dangling link as fs.ModeIrregular.
func (f *FS) ReadDir(name string) (entries []fs.DirEntry, err error) {
	err = f.do("readdir", name, func(osPath string) error {
		list, err := f.env.files.readDir(f.ctx, osPath)
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
			meta, err := f.env.files.stat(f.ctx, osPath)
			links[i] = err == nil && meta.IsSymlink
		})
	}
	return links
}

// ReadFile implements fs.ReadFileFS. If the file is too large for one message, ReadFile
// reads it in blocks.
func (f *FS) ReadFile(name string) (data []byte, err error) {
	err = f.do("open", name, func(osPath string) error {
		data, err = f.env.files.readFile(f.ctx, osPath)
		// The server refuses a file that is too large for one message.
		if err == nil || !errors.Is(err, protocol.ErrInvalidRequest) {
			return err
		}
		meta, statErr := f.env.files.stat(f.ctx, osPath)
		if statErr != nil || !meta.IsFile || meta.Size <= maxBlock {
			return err
		}
		b, openErr := f.env.files.openFile(f.ctx, osPath, meta)
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
		real, err = f.env.files.realPath(f.ctx, osPath)
		return err
	})
	return real, err
}

// WriteFile writes data to a file, and creates it if necessary. It writes an existing file in place:
// programs that have it open, watch it or mount it see the change, and may see a part of it.
// ReplaceFile is atomic. If the connection breaks, the file is written again. data must fit into one
// message of the server, by default at least 48 MiB; Create has no such limit.
func (f *FS) WriteFile(name string, data []byte) error {
	return f.do("write", name, func(osPath string) error {
		return f.env.files.writeFile(f.ctx, osPath, data, nil, false)
	})
}

// Create creates or truncates a file, and returns a writer. Write collects blocks of 1 MiB, so a
// later Write or Close may report its error, and only Close writes the rest. Write and Close must
// not be called concurrently. If the connection breaks, a part of the data may have been written,
// and the error matches an *InterruptedError.
//
// If the server lacks the capability fileWriteStreaming, Close creates the file and writes
// everything, up to 48 MiB.
func (f *FS) Create(name string) (file io.WriteCloser, err error) {
	err = f.do("create", name, func(osPath string) error {
		if !f.env.has(capFileWriting) {
			file = &wholeWriter{fs: f, name: name, osPath: osPath}
			return nil
		}
		b, err := f.env.files.openToWrite(f.ctx, osPath, protocol.OpenReplace, nil)
		file = &fileWriter{ctx: f.ctx, name: name, blocks: b}
		return err
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

// Mkdir creates a directory. The error matches fs.ErrExist if the name exists.
func (f *FS) Mkdir(name string) error {
	return f.do("mkdir", name, func(osPath string) error { return f.env.files.mkdir(f.ctx, osPath, false, nil) })
}

// MkdirAll creates a directory with all its parents. It accepts an existing directory.
func (f *FS) MkdirAll(name string) error {
	return f.do("mkdir", name, func(osPath string) error { return f.env.files.mkdir(f.ctx, osPath, true, nil) })
}

// Remove removes a file, a link, or an empty directory.
func (f *FS) Remove(name string) error {
	return f.do("remove", name, func(osPath string) error { return f.env.files.remove(f.ctx, osPath, false) })
}

// RemoveAll removes a file, or a directory with everything in it. It accepts a name that does not
// exist.
func (f *FS) RemoveAll(name string) error {
	return f.do("remove", name, func(osPath string) error { return f.env.files.remove(f.ctx, osPath, true) })
}

// Copy copies a file or a directory within the machine, with the modes, and links as links. A
// directory is copied with everything in it, and merged into an existing one.
func (f *FS) Copy(from, to string) error {
	osPath, err := f.osPath("copy", to)
	if err != nil {
		return err
	}
	return f.do("copy", from, func(source string) error {
		return f.env.files.copyFile(f.ctx, source, osPath, true)
	})
}

// The methods of FS about modes, times, links and names (EXTENSIONS.md, "fsMetadata").

// doWith runs an operation that needs a capability.
func (f *FS) doWith(capability, op, name string, run func(osPath string) error) error {
	return f.do(op, name, func(osPath string) error {
		if !f.env.has(capability) {
			return &UnsupportedError{op, capability}
		}
		return run(osPath)
	})
}

// Lstat implements fs.ReadLinkFS. It describes a link itself, for which the server needs the
// capability fsMetadata.
func (f *FS) Lstat(name string) (info fs.FileInfo, err error) {
	err = f.do("lstat", name, func(osPath string) error {
		meta, err := f.env.files.metadata(f.ctx, osPath, f.env.has(capMetadata))
		switch {
		case err != nil:
			return err
		case meta.IsSymlink && !f.env.has(capMetadata):
			return &UnsupportedError{"describe a link", capMetadata}
		}
		info = &fileInfo{path.Base(name), *meta}
		return nil
	})
	return info, err
}

// ReadLink implements fs.ReadLinkFS. It returns the target of a symbolic link, as the link has it.
func (f *FS) ReadLink(name string) (target string, err error) {
	err = f.doWith(capMetadata, "readlink", name, func(osPath string) error {
		target, err = f.env.files.readLink(f.ctx, osPath)
		return err
	})
	return target, err
}

// Symlink creates a symbolic link at name. target is a path of the machine, which need not exist.
// The error matches fs.ErrExist if name exists.
func (f *FS) Symlink(target, name string) error {
	return f.doWith(capMetadata, "symlink", name, func(osPath string) error {
		return f.env.files.symlink(f.ctx, target, osPath)
	})
}

// Rename renames a file, directory or link within a file system of the machine, and replaces an
// existing file newname. The server needs the capability fsRename.
func (f *FS) Rename(oldname, newname string) error {
	target, err := f.osPath("rename", newname)
	if err != nil {
		return err
	}
	return f.doWith(capRename, "rename", oldname, func(osPath string) error {
		return f.env.files.rename(f.ctx, osPath, target)
	})
}

// Chmod sets the permissions of a file, and the bits fs.ModeSetuid, fs.ModeSetgid and fs.ModeSticky.
// It follows links.
func (f *FS) Chmod(name string, mode fs.FileMode) error {
	return f.change("chmod", name, protocol.SetMetadataParams{Mode: modeBits(mode)})
}

// Chtimes sets the modification time of a file, not before 1970. It follows links. Unlike
// os.Chtimes, it does not set the access time.
func (f *FS) Chtimes(name string, modified time.Time) error {
	return f.change("chtimes", name, protocol.SetMetadataParams{FileTime: protocol.NewFileTime(modified)})
}

// Truncate sets the size of a regular file. It extends a file with zeros.
func (f *FS) Truncate(name string, size int64) error {
	if size < 0 {
		return &fs.PathError{Op: "truncate", Path: name, Err: fs.ErrInvalid}
	}
	bytes := uint64(size)
	return f.change("truncate", name, protocol.SetMetadataParams{Size: &bytes})
}

func (f *FS) change(op, name string, params protocol.SetMetadataParams) error {
	return f.doWith(capMetadata, op, name, func(osPath string) error {
		return f.env.files.setMetadata(f.ctx, osPath, params)
	})
}

// WriteFileMode is like WriteFile, and sets the mode of the file, regardless of the umask. The
// server needs the capability fsWriteFileMode.
func (f *FS) WriteFileMode(name string, data []byte, mode fs.FileMode) error {
	return f.doWith(capFileMode, "write", name, func(osPath string) error {
		return f.env.files.writeFile(f.ctx, osPath, data, modeBits(mode), false)
	})
}

// ReplaceFile is like WriteFile, but atomic: it renames a complete new file over the old one, so
// that a reader never sees a part of the content. The new file has the owner, mode and extended
// attributes of the old one.
//
// Other hard links, programs that have the old file open or watch it, and containers that mount only
// that file keep the old one. The server needs the capability fsWriteFileReplace.
func (f *FS) ReplaceFile(name string, data []byte) error {
	return f.doWith(capFileReplace, "replace", name, func(osPath string) error {
		return f.env.files.writeFile(f.ctx, osPath, data, nil, true)
	})
}

// MkdirMode is like Mkdir, and sets the mode of the directory, regardless of the umask.
func (f *FS) MkdirMode(name string, mode fs.FileMode) error {
	return f.doWith(capMetadata, "mkdir", name, func(osPath string) error {
		return f.env.files.mkdir(f.ctx, osPath, false, modeBits(mode))
	})
}

// CreateMode is like Create, and sets the mode of the file, regardless of the umask. A new file
// never has more permissions than mode. An existing file gets mode on Close.
func (f *FS) CreateMode(name string, mode fs.FileMode) (file io.WriteCloser, err error) {
	err = f.doWith(capMetadata, "create", name, func(osPath string) error {
		b, err := f.env.files.openToWrite(f.ctx, osPath, protocol.OpenReplace, modeBits(mode.Perm()))
		file = &modeWriter{fileWriter{ctx: f.ctx, name: name, blocks: b}, f, mode}
		return err
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

// modeWriter sets the mode of a file that has been written.
type modeWriter struct {
	fileWriter
	fs   *FS
	mode fs.FileMode
}

// Close implements io.Closer.
func (w *modeWriter) Close() error {
	if err := w.fileWriter.Close(); err != nil {
		return err
	}
	return w.fs.Chmod(w.name, w.mode)
}
