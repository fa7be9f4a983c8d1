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

func rename(from, to string, options RenameOptions) error {
	for _, path := range []string{from, to} {
		if err := guard(path, options.Links); err != nil {
			return err
		}
		if info, err := os.Lstat(path); err == nil && options.Links == NoFollow && isLink(info.Mode()) {
			return &Refusal{textLinkInPath}
		}
	}
	if options.NoReplace {
		if _, err := os.Lstat(to); err == nil {
			return pathError("rename", from, syscall.EEXIST)
		}
	}
	return pathError("rename", from, os.Rename(from, to))
}

func symlink(target, path string, links Links) error {
	if err := guard(path, links); err != nil {
		return err
	}
	return pathError("symlink", path, os.Symlink(target, path))
}

func readLink(path string, links Links) (string, error) {
	if err := guard(path, links); err != nil {
		return "", err
	}
	text, err := os.Readlink(path)
	return text, pathError("readlink", path, err)
}

func remove(_ context.Context, path string, options RemoveOptions) error {
	if err := guard(path, options.Links); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return pathError("remove", path, err)
	}
	if options.Links == NoFollow && isLink(info.Mode()) {
		return &Refusal{textLinkInPath}
	}
	if options.Recursive && info.IsDir() {
		return pathError("remove", path, os.RemoveAll(path))
	}
	return pathError("remove", path, os.Remove(path))
}
