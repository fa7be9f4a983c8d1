package filesystem

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrMagicLink is the error for a path that leads over a link in /proc to what a process
// has open, or may do so.
var ErrMagicLink = errors.New("the path may lead over a link of a process")

// OpenPath opens a file only to identify it, whatever its kind is. It follows no links in
// /proc that lead to what a process has open. Before Linux 5.6, where it cannot know, it
// fails with ErrMagicLink.
func OpenPath(path string, links Links) (*os.File, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if links == NoFollow {
		how.Flags |= unix.O_NOFOLLOW
		how.Resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	fd, err := retry(func() (int, error) { return unix.Openat2(unix.AT_FDCWD, path, &how) })
	switch err {
	case nil:
		return os.NewFile(uintptr(fd), path), nil
	case unix.ENOENT, unix.EACCES, unix.ENOTDIR, unix.ENAMETOOLONG:
		return nil, pathError("open", path, err)
	}
	return nil, ErrMagicLink
}

// OpenPlain opens a regular file to read it, and follows no links in /proc that lead to
// what a process has open: they are ErrMagicLink.
func OpenPlain(ctx context.Context, path string, links Links) (*os.File, error) {
	identity, err := OpenPath(path, links)
	if errors.Is(err, ErrMagicLink) {
		return nil, err
	}
	if identity != nil {
		defer identity.Close()
	}
	f, err := openPlain(ctx, path, links)
	if err != nil {
		return nil, err
	}
	if identity != nil && isSame(identity, f) {
		return f, nil
	}
	_ = f.Close() // somebody has just replaced it
	return nil, ErrMagicLink
}

func openPlain(ctx context.Context, path string, links Links) (*os.File, error) {
	if links == NoFollow {
		return OpenNoFollow(path)
	}
	return OpenFile(ctx, path, HandleRead, 0)
}

func isSame(a, b *os.File) bool {
	one, err := a.Stat()
	if err != nil {
		return false
	}
	other, err := b.Stat()
	return err == nil && os.SameFile(one, other)
}
