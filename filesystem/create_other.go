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
	err := os.Mkdir(path, 0o777)
	if !options.Recursive || err == nil {
		return pathError("mkdir", path, err)
	}
	if parent := filepath.Dir(path); errors.Is(err, fs.ErrNotExist) && parent != path {
		if err := createDirectory(ctx, parent, options); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o777)
	}
	if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
		return nil
	}
	return pathError("mkdir", path, err)
}
