//go:build !linux

package filesystem

import (
	"io/fs"
	"os"
	"runtime"
	"syscall"
	"time"
)

func setMetadata(path string, changes Changes) error {
	if err := guard(path, changes.Links); err != nil {
		return err
	}
	if changes.Mode != nil && runtime.GOOS == "windows" {
		return &Refusal{"a file has no permission bits on Windows"}
	}
	info, err := os.Lstat(path)
	if err == nil && isLink(info.Mode()) {
		if changes.Links == NoFollow {
			return &Refusal{textLinkInPath}
		}
		info, err = os.Stat(path)
	}
	if err != nil {
		return pathError("stat", path, err)
	}
	if changes.Size != nil {
		if err := truncate(path, info, *changes.Size, changes.Links); err != nil {
			return err
		}
	}
	if changes.Mode != nil {
		if err := os.Chmod(path, *changes.Mode); err != nil {
			return pathError("chmod", path, err)
		}
	}
	if changes.Modified != nil {
		if err := os.Chtimes(path, time.Time{}, *changes.Modified); err != nil {
			return pathError("chtimes", path, err)
		}
	}
	return nil
}

func truncate(path string, info fs.FileInfo, size int64, links Links) error {
	switch {
	case info.IsDir():
		return pathError("truncate", path, syscall.EISDIR)
	case !info.Mode().IsRegular():
		return refuseNotFile(path, links)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|nonblock, 0)
	if err != nil {
		return pathError("truncate", path, err)
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(info, now) {
		return refuseNotFile(path, links)
	}
	return pathError("truncate", path, f.Truncate(size))
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
