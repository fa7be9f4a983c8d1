package filesystem

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// CopyOptions are the options of Copy.
type CopyOptions struct {
	Recursive bool // without it, Copy refuses a directory
	Durable   bool // wait until the content of files is on disk

	// InPlace is like WriteOptions.InPlace.
	InPlace func() (done func())

	// Replaced, if not nil, is called for every file that a new one has replaced.
	Replaced func()

	// Skipped, if not nil, is called for every special file in a directory, which Copy
	// leaves out.
	Skipped func(path string)
}

// The texts of Copy's refusals, which existing clients expect.
const (
	textCopyNeedsRecursive = "fs/copy requires recursive: true when sourcePath is a directory"
	textCopyIntoItself     = "fs/copy cannot copy a directory to itself or one of its descendants"
	textCopyOntoItself     = "fs/copy cannot copy a file onto itself"
	textCopySpecial        = "fs/copy only supports regular files, directories, and symlinks"
)

// Copy copies a file with its mode, a link as a link, or a directory.
//
// Copy replaces an existing file as [WriteFile] does, also through a link. It refuses to
// copy a file onto itself, under whatever name, and then changes nothing. It merges a
// directory into an existing one: it leaves out special files, and links must be new. An
// error does not undo the copies before it.
func Copy(ctx context.Context, from, to string, options CopyOptions) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, path := range []string{from, to} {
		if err := checkPath(path); err != nil {
			return err
		}
	}
	from, to = filepath.Clean(from), filepath.Clean(to)
	info, err := os.Lstat(from)
	if err != nil {
		return pathError("copy", from, err)
	}
	switch {
	case info.IsDir() && !options.Recursive:
		return &Refusal{textCopyNeedsRecursive}
	case info.IsDir():
		if err := refuseDescendant(info, to); err != nil {
			return err
		}
		c := copier{ctx: ctx, options: options}
		return c.tree(from, to)
	case isLink(info.Mode()):
		return copyLink(from, to)
	case !info.Mode().IsRegular():
		return &Refusal{textCopySpecial}
	}
	return copyFile(ctx, from, to, options)
}

// refuseDescendant compares files, not names, because a directory has many spellings and
// may be mounted in more than one place. If the destination does not exist yet, its
// future parent counts.
func refuseDescendant(from fs.FileInfo, to string) error {
	dir := to
	for {
		resolved, err := filepath.EvalSymlinks(dir)
		if err == nil {
			dir = resolved
			break
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
		dir = filepath.Dir(dir)
	}
	for {
		info, err := os.Stat(dir)
		if err == nil && os.SameFile(from, info) {
			return &Refusal{textCopyIntoItself}
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
		dir = filepath.Dir(dir)
	}
}

func copyLink(from, to string) error {
	text, err := os.Readlink(from)
	if err != nil {
		return pathError("readlink", from, err)
	}
	return pathError("symlink", to, os.Symlink(text, to))
}

func copyFile(ctx context.Context, from, to string, options CopyOptions) error {
	src, size, err := openRegular(ctx, from, Follow)
	if err != nil {
		return err
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return pathError("stat", from, err)
	}
	if there, err := os.Stat(to); err == nil && os.SameFile(info, there) {
		return &Refusal{textCopyOntoItself}
	}
	mode := info.Mode()
	return writeContent(ctx, to, content{
		size: size,
		writeTo: func(ctx context.Context, dst *os.File) (int64, error) {
			return copyData(ctx, dst, src)
		},
	}, WriteOptions{Mode: &mode, Replaced: options.Replaced, Durable: options.Durable, InPlace: options.InPlace})
}

type copier struct {
	ctx     context.Context
	options CopyOptions
	into    []fs.FileInfo // the directories being copied into, outermost first
}

// tree copies a directory. For each level on the way down it holds the entries of one
// directory.
func (c *copier) tree(from, to string) error {
	if err := createDirectory(c.ctx, to, CreateDirectoryOptions{Recursive: true}); err != nil {
		return err
	}
	// A link in the destination may lead back into the source. Then the copy would copy
	// itself without end.
	info, err := os.Stat(from)
	if err != nil {
		return pathError("copy", from, err)
	}
	for _, dir := range c.into {
		if os.SameFile(info, dir) {
			return &Refusal{textCopyIntoItself}
		}
	}
	made, err := os.Stat(to)
	if err != nil {
		return pathError("copy", to, err)
	}
	c.into = append(c.into, made)
	defer func() { c.into = c.into[:len(c.into)-1] }()

	var names []fs.DirEntry
	err = eachEntry(c.ctx, from, func(_ *os.File, e fs.DirEntry) bool {
		names = append(names, e)
		return true
	})
	if err != nil {
		return err
	}
	for _, e := range names {
		if err := c.entry(join(from, e.Name()), join(to, e.Name()), e.Type()); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) entry(from, to string, kind fs.FileMode) error {
	switch {
	case c.ctx.Err() != nil:
		return context.Cause(c.ctx)
	case kind.IsDir():
		return c.tree(from, to)
	case isLink(kind):
		return copyLink(from, to)
	case !kind.IsRegular():
		if c.options.Skipped != nil {
			c.options.Skipped(from)
		}
		return nil
	}
	err := copyFile(c.ctx, from, to, c.options)
	if refusal, ok := errors.AsType[*Refusal](err); ok && refusal.Text == textCopyOntoItself {
		return nil // the two trees share this file
	}
	return err
}

// copyBlocks copies up to limit bytes from the current offsets of both files. It checks the
// context between blocks, and lets the kernel copy if it can.
func copyBlocks(ctx context.Context, dst, src *os.File, limit int64) (int64, error) {
	var total int64
	for total < limit {
		if ctx.Err() != nil {
			return total, context.Cause(ctx)
		}
		n, err := io.CopyN(dst, src, min(copyBlock, limit-total))
		total += n
		if err == io.EOF {
			break
		}
		if err != nil {
			return total, cause(err)
		}
	}
	return total, nil
}
