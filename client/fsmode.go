package client

import (
	"io"
	"io/fs"
	"path"
	"time"

	"execserver/protocol"
)

// The methods of FS about modes, times, links and names (PROTOCOL.md, "Modes, times and
// links").

// doWith runs an operation that needs a capability.
func (f *FS) doWith(capability, op, name string, run func(osPath string) error) error {
	return f.do(op, name, func(osPath string) error {
		if !f.env.has(capability) {
			return &UnsupportedError{op, capability}
		}
		return run(osPath)
	})
}

// Lstat implements fs.ReadLinkFS. It describes a link itself. With servers without the
// capability fsMetadata it describes only other files.
func (f *FS) Lstat(name string) (info fs.FileInfo, err error) {
	err = f.do("lstat", name, func(osPath string) error {
		meta, err := f.env.link.metadata(f.ctx, osPath, f.env.has(capMetadata))
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

// ReadLink implements fs.ReadLinkFS. It returns the text of a symbolic link, which is a
// path of the machine.
func (f *FS) ReadLink(name string) (target string, err error) {
	err = f.doWith(capMetadata, "readlink", name, func(osPath string) error {
		target, err = f.env.link.readLink(f.ctx, osPath)
		return err
	})
	return target, err
}

// Symlink creates a symbolic link at name with the text target, a path of the machine that
// need not exist. The error matches fs.ErrExist if there is a file at name. If the
// connection breaks, the client does not repeat Symlink and Rename, and the error matches
// a *DisconnectedError.
func (f *FS) Symlink(target, name string) error {
	return f.doWith(capMetadata, "symlink", name, func(osPath string) error {
		return f.env.link.symlink(f.ctx, target, osPath)
	})
}

// Rename moves a file or directory within a file system, and replaces a file at to
// (PROTOCOL.md, "fs/rename"). It moves a link itself.
func (f *FS) Rename(from, to string) error {
	target, err := f.osPath("rename", to)
	if err != nil {
		return err
	}
	return f.doWith(capRename, "rename", from, func(osPath string) error {
		return f.env.link.rename(f.ctx, osPath, target)
	})
}

// Chmod sets the permissions of a file, and the bits fs.ModeSetuid, fs.ModeSetgid and
// fs.ModeSticky. It follows links. If the connection breaks, the client repeats Chmod,
// Chtimes and Truncate.
func (f *FS) Chmod(name string, mode fs.FileMode) error {
	return f.change("chmod", name, protocol.SetMetadataParams{Mode: modeBits(mode)})
}

// Chtimes sets the time of modification of a file. It follows links. The protocol has no
// times before 1970.
func (f *FS) Chtimes(name string, modified time.Time) error {
	return f.change("chtimes", name, protocol.SetMetadataParams{FileTime: protocol.NewFileTime(modified)})
}

// Truncate sets the size of a regular file: it cuts the file, or extends it by zeros.
func (f *FS) Truncate(name string, size int64) error {
	if size < 0 {
		return &fs.PathError{Op: "truncate", Path: name, Err: fs.ErrInvalid}
	}
	bytes := uint64(size)
	return f.change("truncate", name, protocol.SetMetadataParams{Size: &bytes})
}

func (f *FS) change(op, name string, params protocol.SetMetadataParams) error {
	return f.doWith(capMetadata, op, name, func(osPath string) error {
		return f.env.link.setMetadata(f.ctx, osPath, params)
	})
}

// WriteFileMode is like WriteFile, and gives the file a mode, whatever the umask.
func (f *FS) WriteFileMode(name string, data []byte, mode fs.FileMode) error {
	return f.doWith(capFileMode, "write", name, func(osPath string) error {
		return f.env.link.writeFile(f.ctx, osPath, data, modeBits(mode), false)
	})
}

// ReplaceFile is like WriteFile, but it puts a whole new file in the place of an existing one,
// by a rename, where WriteFile writes in place: a reader never sees a part of the content. The
// new file has the owner, the mode and the extended attributes of the old one. Other hard
// links, programs that have the old file open or watch it, and containers that mount that file
// alone keep the old one.
func (f *FS) ReplaceFile(name string, data []byte) error {
	return f.doWith(capFileReplace, "replace", name, func(osPath string) error {
		return f.env.link.writeFile(f.ctx, osPath, data, nil, true)
	})
}

// MkdirMode is like Mkdir, and gives the directory a mode, whatever the umask.
func (f *FS) MkdirMode(name string, mode fs.FileMode) error {
	return f.doWith(capMetadata, "mkdir", name, func(osPath string) error {
		return f.env.link.mkdir(f.ctx, osPath, false, modeBits(mode))
	})
}

// CreateMode is like Create, and gives the file a mode, whatever the umask. A new file
// never has more permissions than mode; an existing one gets them when it is closed.
func (f *FS) CreateMode(name string, mode fs.FileMode) (file io.WriteCloser, err error) {
	err = f.doWith(capMetadata, "create", name, func(osPath string) error {
		b, err := f.env.link.openToWrite(f.ctx, osPath, protocol.OpenReplace, modeBits(mode.Perm()))
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
