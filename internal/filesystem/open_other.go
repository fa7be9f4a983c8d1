//go:build !linux

package filesystem

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// ErrMagicLink is the error for links that only Linux has.
var ErrMagicLink = errors.New("the path may lead over a link of a process")

// OpenPath opens a file to identify it.
func OpenPath(path string, _ Links) (*os.File, error) { return os.Open(path) }

// OpenPermitted opens a file and calls permit with it. Nothing is confined on this system.
func OpenPermitted(path string, permit func(*os.File) error) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := permit(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// OpenNoMagicLinks opens a regular file to read it.
func OpenNoMagicLinks(ctx context.Context, path string, links Links) (*os.File, error) {
	if links == NoFollow {
		return OpenNoFollow(ctx, path)
	}
	return OpenFile(ctx, path, HandleRead, 0)
}

// InProc reports whether an open file is in /proc. On this system no such file describes
// the server.
func InProc(*os.File) bool { return false }

func openRegular(_ context.Context, path string, links Links) (*os.File, int64, error) {
	if err := guard(path, links); err != nil {
		return nil, 0, err
	}
	stat := os.Stat
	if links == NoFollow {
		stat = os.Lstat
	}
	info, err := stat(path)
	if err != nil {
		return nil, 0, pathError("open", path, err)
	}
	if isLink(info.Mode()) {
		return nil, 0, pathError("open", path, syscall.ELOOP)
	}
	if !info.Mode().IsRegular() && info.Mode()&os.ModeSocket == 0 {
		return nil, 0, refuseNotFile(path, links)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, pathError("open", path, err)
	}
	if info, err = f.Stat(); err == nil && info.Mode().IsRegular() {
		return f, info.Size(), nil
	}
	f.Close()
	if err != nil {
		return nil, 0, pathError("stat", path, err)
	}
	return nil, 0, refuseNotFile(path, links)
}

func openToWrite(_ context.Context, path string, empty bool, perm fs.FileMode) (*os.File, error) {
	if err := guard(path, Follow); err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeDevice != 0 {
		return nil, refuseNotFile(path, Follow)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|syscall.O_NONBLOCK, perm)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = refuseNotFile(path, Follow)
	} else if err == nil && empty {
		err = pathError("open", path, f.Truncate(0))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func openDirectory(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, syscall.ENOTDIR
	}
	return os.Open(path)
}
