package filesystem

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
)

// Canonicalize resolves every link in path, which must exist.
func Canonicalize(ctx context.Context, path string) (string, error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err := checkPath(path); err != nil {
		return "", err
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		if _, ok := errors.AsType[syscall.Errno](err); !ok {
			err = syscall.ELOOP // the only error of EvalSymlinks that is a text
		}
		return "", pathError("canonicalize", path, err)
	}
	return resolved, nil
}

// Join returns path relative to the directory base, lexically. It returns an absolute
// path unchanged.
func Join(base, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(base, path)
}

// Parent returns the directory of path, lexically; the root has none.
func Parent(path string) (string, bool) {
	path = filepath.Clean(path)
	parent := filepath.Dir(path)
	return parent, parent != path
}
