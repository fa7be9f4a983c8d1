package filesystem

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
)

// Tree reads files in a directory. It does not follow a link out of the directory, even
// if somebody changes links meanwhile.
type Tree struct {
	root *os.Root
	real string // the directory without links
}

// OutsideError says that a path leads out of a directory.
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
	// The name leads over no link any more, unless somebody has just created one.
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
