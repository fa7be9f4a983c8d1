//go:build !linux

package filesystem

import (
	"context"
	"io/fs"
	"os"
	"runtime"
	"syscall"
	"time"
)

func getMetadata(path string, links Links, itself bool) (Metadata, error) {
	if err := guard(path, links); err != nil {
		return Metadata{}, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return Metadata{}, pathError("stat", path, err)
	}
	symlink := isLink(info.Mode())
	target := ""
	switch {
	case symlink && itself:
		if target, err = os.Readlink(path); err != nil {
			return Metadata{}, pathError("readlink", path, err)
		}
	case symlink:
		if links == NoFollow {
			return Metadata{}, &Refusal{textLinkInPath}
		}
		if info, err = os.Stat(path); err != nil {
			return Metadata{}, pathError("stat", path, err)
		}
	}
	uid, gid := owner(info)
	return Metadata{
		IsDirectory: info.IsDir(),
		IsFile:      info.Mode().IsRegular(),
		IsSymlink:   symlink,
		Size:        info.Size(),
		Modified:    info.ModTime(),
		Mode:        info.Mode(),
		UID:         uid,
		GID:         gid,
		Target:      target,
	}, nil
}

func setMetadata(_ context.Context, path string, changes Changes) error {
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
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return pathError("truncate", path, err)
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(info, now) {
		return refuseNotFile(path, links)
	}
	return pathError("truncate", path, f.Truncate(size))
}

// examine describes an entry of a directory, or returns nil if it cannot.
func examine(_ *os.File, path, name string) *Metadata {
	info, err := os.Lstat(join(path, name))
	if err != nil {
		return nil
	}
	m := &Metadata{Size: info.Size(), Modified: info.ModTime(), Mode: info.Mode()}
	if isLink(m.Mode) {
		if m.Target, err = os.Readlink(join(path, name)); err != nil {
			return nil
		}
	}
	return m
}

func targetMode(_ *os.File, path, name string) fs.FileMode {
	info, err := os.Stat(join(path, name))
	if err != nil {
		return noMode
	}
	return info.Mode().Type()
}
