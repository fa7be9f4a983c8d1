package filesystem

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

func remove(ctx context.Context, path string, options RemoveOptions) error {
	if path == "/" {
		return pathError("remove", path, unix.EBUSY)
	}
	p, err := locate(path, options.Links)
	if err != nil {
		return err
	}
	defer p.close()
	if options.Links == NoFollow {
		if st, err := p.stat(unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return &Refusal{textLinkInPath}
		}
	}
	err = p.unlink()
	if err == nil || !options.Recursive || !mayBeDirectory(err) {
		return pathError("remove", path, err)
	}
	r := remover{ctx: ctx, path: path}
	return r.remove(p, err)
}

// mayBeDirectory reports whether a name that could not be unlinked because of err may be
// a directory whose content can be removed. The directory itself may stay: Remove also
// empties a mount point, and a directory in a parent that it may not write.
func mayBeDirectory(err error) bool {
	switch err {
	case unix.ENOTEMPTY, unix.EEXIST, unix.EACCES, unix.EPERM, unix.EBUSY, unix.EROFS:
		return true
	}
	return false
}

// unlink removes a file or an empty directory.
func (p pathAt) unlink() error {
	_, err := retry(func() (int, error) { return 0, sys.Unlinkat(p.dirfd, p.name, 0) })
	if err == unix.EROFS { // comes first, even if there is nothing to remove
		if _, statErr := p.stat(unix.AT_SYMLINK_NOFOLLOW); statErr == unix.ENOENT {
			return statErr
		}
	}
	if err != unix.EISDIR && err != unix.EPERM { // some file systems return EPERM for a directory
		return err
	}
	_, dirErr := retry(func() (int, error) { return 0, sys.Unlinkat(p.dirfd, p.name, unix.AT_REMOVEDIR) })
	if dirErr == unix.ENOTDIR {
		return err
	}
	return dirErr
}

// remover empties directories, deepest first. It keeps the directories on the way down
// open, so nobody can mislead it by moving them.
type remover struct {
	ctx   context.Context
	path  string
	first error // the first failure to remove something
	stack []*openDir
}

// openDir is a directory that is being emptied. A tree may be deeper than the limit of open
// files. So remover closes the outermost directories, and opens them again through "..".
type openDir struct {
	pathAt   // in its parent
	dir      *os.File
	dev, ino uint64
	names    []string
	budget   int             // how many names later passes may read
	repeated bool            // this is not the first pass
	progress bool            // something was removed since the start of this pass
	failed   map[string]bool // what could not be removed
}

// keepOpen is how many directories are open at a time.
const keepOpen = 100

// remove empties and removes the directory top. unlinkErr is the error of the attempt to
// unlink it.
func (r *remover) remove(top pathAt, unlinkErr error) error {
	defer func() {
		for _, d := range r.stack {
			if d.dir != nil {
				d.dir.Close()
			}
		}
	}()
	if err := r.enter(top, unlinkErr); err != nil {
		return pathError("remove", r.path, err)
	}
	for len(r.stack) > 0 {
		if r.ctx.Err() != nil {
			return context.Cause(r.ctx)
		}
		if err := r.step(); err != nil {
			return pathError("remove", r.path, err)
		}
	}
	return pathError("remove", r.path, r.first)
}

// enter opens a directory that could not be unlinked because of unlinkErr. It returns unlinkErr
// if p is not a directory.
func (r *remover) enter(p pathAt, unlinkErr error) error {
	fd, err := p.open(unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	switch {
	case err == nil:
	case unlinkErr == unix.ENOTEMPTY || unlinkErr == unix.EEXIST: // a directory that is not empty
		return err
	default:
		return unlinkErr
	}
	var st unix.Stat_t
	if err := sys.Fstat(fd, &st); err != nil {
		sys.Close(fd)
		return err
	}
	if n := len(r.stack) - keepOpen; n >= 0 {
		r.stack[n].dir.Close()
		r.stack[n].dir = nil
	}
	r.stack = append(r.stack, &openDir{
		pathAt: p, dir: newFile(fd, p.name), dev: uint64(st.Dev), ino: st.Ino, budget: directoryBatch,
	})
	return nil
}

// step removes one name of the deepest directory, enters it, or leaves that directory.
func (r *remover) step() error {
	d := r.stack[len(r.stack)-1]
	if len(d.names) == 0 {
		names, err := d.dir.Readdirnames(directoryBatch)
		if len(names) == 0 {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ENOENT) {
				r.record(err)
			}
			return r.leave(d)
		}
		d.names = names
		if !d.repeated {
			d.budget += len(names)
		} else if d.budget -= len(names); d.budget < 0 {
			return r.leave(d)
		}
	}
	name := d.names[len(d.names)-1]
	d.names = d.names[:len(d.names)-1]
	if d.failed[name] {
		return nil
	}
	p := pathAt{dirfd: int(d.dir.Fd()), name: name}
	err := p.unlink()
	if mayBeDirectory(err) {
		err = r.enter(p, err)
		if err == nil {
			return nil
		}
	}
	if err == nil {
		d.progress = true
	} else if err != unix.ENOENT {
		d.markFailed(name)
		r.record(err)
	}
	return nil
}

// leave removes a directory that is empty now. It starts another pass if new names have
// appeared, or if reading skipped names because others were removed. All later passes
// together read no more names than the first, so it ends even if a program keeps creating
// files.
func (r *remover) leave(d *openDir) error {
	if d.progress && len(d.failed) == 0 && d.budget > 0 {
		d.progress, d.repeated = false, true
		if _, err := d.dir.Seek(0, io.SeekStart); err == nil {
			if names, _ := d.dir.Readdirnames(1); len(names) > 0 {
				d.names = names
				d.budget--
				return nil
			}
		}
	}
	r.stack = r.stack[:len(r.stack)-1]
	defer d.dir.Close()
	if len(r.stack) == 0 {
		return r.removed(d, nil)
	}
	parent := r.stack[len(r.stack)-1]
	if parent.dir == nil {
		if err := parent.reopen(d); err != nil {
			return err
		}
	}
	d.pathAt.dirfd = int(parent.dir.Fd())
	return r.removed(d, parent)
}

func (r *remover) removed(d, parent *openDir) error {
	_, err := retry(func() (int, error) { return 0, sys.Unlinkat(d.pathAt.dirfd, d.name, unix.AT_REMOVEDIR) })
	switch {
	case err == nil || err == unix.ENOENT:
		if parent != nil {
			parent.progress = true
		}
	default:
		r.record(err)
		if parent != nil {
			parent.markFailed(d.name)
		}
	}
	return nil
}

// reopen opens d again, as the parent of child.
func (d *openDir) reopen(child *openDir) error {
	fd, err := pathAt{dirfd: int(child.dir.Fd()), name: ".."}.open(unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := sys.Fstat(fd, &st); err != nil || uint64(st.Dev) != d.dev || st.Ino != d.ino {
		sys.Close(fd)
		return unix.ESTALE // moved away; the directory there now is another one
	}
	d.dir = newFile(fd, d.name)
	return nil
}

func (d *openDir) markFailed(name string) {
	if d.failed == nil {
		d.failed = map[string]bool{}
	}
	d.failed[name] = true
}

func (r *remover) record(err error) {
	if r.first == nil {
		r.first = cause(err)
	}
}
