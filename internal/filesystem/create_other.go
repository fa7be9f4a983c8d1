//go:build !linux

package filesystem

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

func createDirectory(ctx context.Context, path string, options CreateDirectoryOptions) error {
	if options.Links == NoFollow {
		err := guard(path, NoFollow)
		if err != nil && !(options.Recursive && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
		if info, err := os.Lstat(path); options.Recursive && err == nil && !info.IsDir() {
			return pathError("mkdir", path, syscall.ENOTDIR)
		}
	}
	err := mkdir(path, options.Mode)
	if !options.Recursive || err == nil {
		return pathError("mkdir", path, err)
	}
	if parent := filepath.Dir(path); errors.Is(err, fs.ErrNotExist) && parent != path {
		above := options
		above.Mode = nil
		if err := createDirectory(ctx, parent, above); err != nil {
			return err
		}
		err = mkdir(path, options.Mode)
	}
	if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
		return nil
	}
	return pathError("mkdir", path, err)
}

// mkdir creates a directory. A nil mode is 0777 minus the umask.
func mkdir(path string, mode *fs.FileMode) error {
	if mode == nil {
		return os.Mkdir(path, 0o777)
	}
	if err := os.Mkdir(path, mode.Perm()); err != nil {
		return err
	}
	if info, err := os.Lstat(path); err != nil || !info.IsDir() {
		return syscall.EBUSY // another program has replaced it
	}
	return os.Chmod(path, *mode)
}
