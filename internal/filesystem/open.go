package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// DefaultReadLimit is the default size of the largest file that is read whole. In base64
// it makes a message of a little less than 64 MiB, the largest that existing clients
// accept.
const DefaultReadLimit = 48<<20 - 1<<10

// ReadOptions are the options of Open and ReadFile.
type ReadOptions struct {
	Links Links
	Limit int64 // bytes; 0 means DefaultReadLimit, negative none
}

// TooLargeError reports that a file exceeds the limit for reading it whole.
type TooLargeError struct {
	Limit int64
	Size  int64 // 0 if the file has no size of its own, as in /proc
}

func (e *TooLargeError) Error() string {
	text := fmt.Sprintf("file is too large to read: limit is %d bytes", e.Limit)
	if e.Size > 0 {
		text += fmt.Sprintf(", size is %d bytes", e.Size)
	}
	return text
}

// File is a regular file that is open to be read whole.
type File struct {
	f     *os.File
	size  int64
	limit int64
	read  int64
}

// Open opens a regular file for reading and never blocks. A FIFO, device or directory is
// a [Refusal]. A file beyond the limit is a [TooLargeError], before Open reads anything.
func Open(ctx context.Context, path string, options ReadOptions) (*File, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	f, size, err := openRegular(ctx, path, options.Links)
	if err != nil {
		return nil, err
	}
	return limited(f, size, options.Limit)
}

// NewFile returns a File for a regular file that is open already, with the limit of
// [ReadOptions]. The File owns f from then on.
func NewFile(f *os.File, limit int64) (*File, error) {
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, pathError("stat", f.Name(), err)
	}
	return limited(f, info.Size(), limit)
}

func limited(f *os.File, size, limit int64) (*File, error) {
	switch {
	case limit == 0:
		limit = DefaultReadLimit
	case limit < 0:
		limit = 1<<63 - 1
	}
	if size > limit {
		_ = f.Close()
		return nil, &TooLargeError{Limit: limit, Size: size}
	}
	return &File{f: f, size: size, limit: limit}, nil
}

// Size returns the size at the time of opening. It is a hint: the file may change, and
// files in /proc have size 0 and content.
func (f *File) Size() int64 { return f.size }

// Read reads the next bytes. A file that turns out to be longer than the limit is a
// [TooLargeError].
func (f *File) Read(p []byte) (int, error) {
	n, err := f.f.Read(p)
	f.read += int64(n)
	if f.read > f.limit {
		return 0, &TooLargeError{Limit: f.limit}
	}
	return n, f.readError(err)
}

// Rewind makes the next Read start at the beginning.
func (f *File) Rewind() error {
	f.read = 0
	_, err := f.f.Seek(0, io.SeekStart)
	return pathError("seek in", f.f.Name(), err)
}

// readError turns "nothing to read now" into the end of the file. Only files that are
// written while they are read return it, such as /proc/kmsg.
func (f *File) readError(err error) error {
	switch {
	case err == nil || err == io.EOF:
		return err
	case errors.Is(err, syscall.EAGAIN):
		return io.EOF
	}
	return pathError("read", f.f.Name(), err)
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

// readBlock is how many bytes are read between two checks of the context.
const readBlock = 1 << 20

// readAll reads the rest of the file.
func (f *File) readAll(ctx context.Context) ([]byte, error) {
	data := make([]byte, 0, f.Size()+512)
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if len(data) == cap(data) {
			data = slices.Grow(data, 512)
		}
		n, err := f.Read(data[len(data):min(cap(data), len(data)+readBlock)])
		data = data[:len(data)+n]
		if err == io.EOF {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// HandleMode is the access for which a handle is opened.
type HandleMode int

const (
	// HandleRead reads a regular file.
	HandleRead HandleMode = iota
	// HandleReplace creates a file, or empties it at once, and writes it.
	HandleReplace
	// HandleUpdate creates a file, or keeps its content, and writes it.
	HandleUpdate
)

// Opener opens a regular file. It waits for another process only if that has a lease on the
// file, and no longer than ctx.
type Opener func(ctx context.Context, path string, mode HandleMode) (*os.File, error)

// OpenFile is an [Opener] that uses the server's own permissions. A file that it creates
// gets the permissions create minus the umask.
func OpenFile(ctx context.Context, path string, mode HandleMode, create fs.FileMode) (f *os.File, err error) {
	if mode == HandleRead {
		f, _, err = openRegular(ctx, path, Follow)
		return f, err
	}
	return openToWrite(ctx, path, mode == HandleReplace, create.Perm())
}

// OpenNoFollow opens a regular file for reading, and follows no links.
func OpenNoFollow(ctx context.Context, path string) (*os.File, error) {
	f, _, err := openRegular(ctx, path, NoFollow)
	return f, err
}

// Tree reads files in a directory. It does not follow a link out of the directory, even
// while other programs change links.
type Tree struct {
	root *os.Root
	real string // the directory without links
}

// OutsideError reports that a path leads out of a directory.
type OutsideError struct{}

func (e *OutsideError) Error() string { return "a link leads out of the directory" }

// OpenTree opens a directory, which may itself be a link.
func OpenTree(ctx context.Context, dir string) (*Tree, error) {
	real, err := Canonicalize(ctx, dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(real)
	if err != nil {
		return nil, pathError("open", dir, err)
	}
	return &Tree{root, real}, nil
}

// Close closes the directory.
func (t *Tree) Close() error { return t.root.Close() }

// ReadFile reads a regular file whole, as the function [ReadFile] does. A path
// that leads out of the directory is an [OutsideError].
func (t *Tree) ReadFile(ctx context.Context, path string, limit int64) ([]byte, error) {
	real, err := Canonicalize(ctx, path)
	if err != nil {
		return nil, err
	}
	if !isInside(t.real, real) {
		return nil, &OutsideError{}
	}
	name, err := filepath.Rel(t.real, real)
	if err != nil {
		return nil, &OutsideError{}
	}
	// The resolved name has no links, unless another program has just created one.
	info, err := t.root.Lstat(name)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, refuseNotFile(path, Follow)
	}
	f, err := t.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // and it does not wait for a FIFO
	if err != nil {
		return nil, pathError("open", path, err)
	}
	file, err := NewFile(f, limit)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || InProc(f) {
		return nil, refuseNotFile(path, Follow)
	}
	return file.readAll(ctx)
}

// isInside reports whether a path is dir or in it. Neither path has links.
func isInside(dir, path string) bool {
	name, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(name)
}
