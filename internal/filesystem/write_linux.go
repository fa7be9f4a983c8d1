package filesystem

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// CanReplace reports whether WriteOptions.Replace works on this system.
const CanReplace = true

// replaceContent chooses how a file gets its content. WriteFile documents the rules.
func replaceContent(ctx context.Context, path string, c content, options WriteOptions) error {
	p, err := locate(path, options.Links)
	if err != nil {
		return err
	}
	defer p.close()
	w := &writer{path: path, content: c, options: options}
	// Try again if the file appears or disappears in between.
	for attempt := 0; ; attempt++ {
		err = w.write(ctx, p)
		if !errors.Is(err, errRetry) {
			return err
		}
		if attempt == 10 {
			return pathError("write", path, unix.EBUSY)
		}
	}
}

// errRetry reports that the file was created, replaced or removed during the write.
var errRetry = errors.New("file changed meanwhile")

type writer struct {
	path    string
	content content
	options WriteOptions
}

// follow returns the flag of stat for the requested treatment of links.
func (w *writer) follow() int {
	if w.options.Links == NoFollow {
		return unix.AT_SYMLINK_NOFOLLOW
	}
	return 0
}

func (w *writer) write(ctx context.Context, p pathAt) error {
	st, err := p.stat(w.follow())
	if err != nil && err != unix.ENOENT {
		return w.failed("open", err)
	}
	existing := err == nil
	if existing {
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
		case unix.S_IFCHR:
			return w.writeDevice(ctx, p)
		case unix.S_IFLNK:
			return w.failed("open", unix.ELOOP)
		case unix.S_IFDIR:
			return w.failed("open", unix.EISDIR)
		case unix.S_IFSOCK:
			return w.failed("open", unix.ENXIO)
		default:
			return refuseNotFile(w.path, w.options.Links)
		}
	}
	target, err := resolveLast(p, w.options.Links)
	if err != nil {
		if !existing {
			return w.failed("open", err)
		}
		target = pathAt{dirfd: -1} // the link cannot be read as a path; write through it
	}
	defer target.close()

	if w.options.ExpectedSHA256 != "" {
		unlock, err := w.lockName(ctx, target)
		if err != nil {
			return err
		}
		defer unlock()
	}
	if !existing {
		return w.create(ctx, target)
	}
	return w.rewrite(ctx, p, target)
}

// nameKey and fileKey are the keys of writeLocks.
type nameKey struct {
	dev, ino uint64 // of the directory
	name     string
}

type fileKey struct{ dev, ino uint64 }

// lockName locks the name that is written, for a conditional write.
func (w *writer) lockName(ctx context.Context, target pathAt) (unlock func(), err error) {
	var dir unix.Stat_t
	if target.dirfd >= 0 {
		if err := sys.Fstat(target.dirfd, &dir); err != nil {
			return nil, w.failed("stat", err)
		}
	}
	return writeLocks.lock(ctx, nameKey{uint64(dir.Dev), dir.Ino, target.name})
}

// create creates a missing file, which appears complete or not at all.
func (w *writer) create(ctx context.Context, target pathAt) error {
	if want := w.options.ExpectedSHA256; want != "" {
		return &ChangedError{Want: want}
	}
	tmp, err := newTemporary(target.dirfd, w.newMode())
	if err != nil {
		return w.failed("open", err)
	}
	defer tmp.discard()
	if err := w.fill(ctx, tmp.f); err != nil {
		return &WriteError{Path: w.path, Err: err}
	}
	switch err := tmp.publish(target, false); err {
	case nil:
		return w.sync(target)
	case unix.EEXIST:
		return errRetry
	case unix.EPERM, unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP, unix.EXDEV, unix.EMLINK:
		return w.createVisible(ctx, target) // the file system supports neither links nor rename flags
	default:
		return w.failed("write", err)
	}
}

// newMode returns the mode, minus the umask, with which a new file is created. It must not
// give more access than the final mode, because the content is written first.
func (w *writer) newMode() uint32 {
	if w.options.Mode == nil {
		return 0o666
	}
	return ModeBits(w.options.Mode.Perm())
}

func (w *writer) createVisible(ctx context.Context, target pathAt) error {
	fd, err := target.open(unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, w.newMode())
	if err == unix.EEXIST {
		return errRetry
	}
	if err != nil {
		return w.failed("open", err)
	}
	f := newFile(fd, w.path)
	defer f.Close()
	ctx, end, err := w.options.beginInPlace(ctx)
	if err == nil {
		defer end()
		err = w.fill(ctx, f)
	}
	if err != nil {
		sys.Unlinkat(target.dirfd, target.name, 0)
		return &WriteError{Path: w.path, Err: err}
	}
	return w.sync(target)
}

// rewrite gives new content to an existing file.
func (w *writer) rewrite(ctx context.Context, p, target pathAt) error {
	flags := unix.O_WRONLY
	if w.options.Links == NoFollow {
		flags |= unix.O_NOFOLLOW
	}
	// Opening the file for writing also checks the permission.
	fd, err := p.openContent(ctx, flags, 0)
	running := err == unix.ETXTBSY // a program that is being run: the permission is there
	if running {
		fd, err = p.openContent(ctx, flags&^unix.O_WRONLY|unix.O_RDONLY, 0)
	}
	if err == unix.ENOENT {
		return errRetry
	}
	if err != nil {
		return w.failed("open", err)
	}
	old := newFile(fd, w.path)
	defer old.Close()
	var st unix.Stat_t
	if err := sys.Fstat(fd, &st); err != nil {
		return w.failed("stat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errRetry
	}
	// One writer at a time: a write may outlive its connection.
	unlock, err := writeLocks.lock(ctx, fileKey{uint64(st.Dev), st.Ino})
	if err != nil {
		return err
	}
	defer unlock()
	if err := sys.Fstat(fd, &st); err != nil {
		return w.failed("stat", err)
	}
	if want := w.options.ExpectedSHA256; want != "" {
		// The previous holder of the keyedLock may have replaced or written this file.
		now, err := p.stat(w.follow())
		if err == unix.ENOENT || err == nil && (now.Dev != st.Dev || now.Ino != st.Ino) {
			return errRetry
		}
		if err != nil {
			return w.failed("stat", err)
		}
		st = now
		if err := w.verify(ctx, fd, want); err != nil {
			return err
		}
	}
	switch {
	case w.options.Replace && target.dirfd < 0:
		return w.failed("replace", unix.EINVAL) // the file has no name
	case w.options.Replace && !target.is(st):
		return errRetry
	case w.options.Replace:
		_, err := w.replace(ctx, old, st, target)
		return err
	case !running:
		return w.overwrite(ctx, old, st)
	case st.Nlink == 1 && target.is(st):
		if possible, err := w.replace(ctx, old, st, target); possible {
			return err
		}
	}
	return w.failed("open", unix.ETXTBSY)
}

// replace writes the content to a new file in the same directory, with the attributes of the
// old one, and renames it over that. possible is false if the attributes cannot be copied, or
// if the directory does not allow a rename.
func (w *writer) replace(ctx context.Context, old *os.File, st unix.Stat_t, target pathAt) (possible bool, err error) {
	failed := func(err error) error { return &WriteError{Path: w.path, Err: err, Unchanged: true} }
	tmp, err := newTemporary(target.dirfd, 0o600)
	if err != nil {
		return slices.Contains([]error{unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.ENFILE, unix.EIO}, err), failed(err)
	}
	defer tmp.discard()
	if err := sys.CopyAttributes(tmp.f, old, st); err != nil {
		return false, failed(err)
	}
	if err := w.fill(ctx, tmp.f); err != nil {
		return true, failed(err)
	}
	if w.options.ExpectedSHA256 != "" && !target.unchanged(st) {
		return true, errRetry
	}
	switch err := tmp.publish(target, true); err {
	case nil:
		if w.options.Replaced != nil {
			w.options.Replaced()
		}
		return true, w.sync(target)
	case unix.ENOSPC, unix.EDQUOT, unix.EIO:
		return true, failed(err)
	default:
		return false, failed(err) // a mount point, a sticky directory, ...
	}
}

// overwrite writes in place, so that other programs that have the file open, watch it or
// mount it see the change. It reserves disk space first, so that it notices a full disk while
// the old content is intact.
func (w *writer) overwrite(ctx context.Context, old *os.File, st unix.Stat_t) error {
	fd := int(old.Fd())
	err := sys.ReserveSpace(fd, w.content.size)
	if err == nil {
		err = w.setMode(fd) // before the content, which the new mode may keep from others
	}
	if err != nil {
		w.unreserve(fd, st)
		return &WriteError{Path: w.path, Err: err, Unchanged: true}
	}
	ctx, end, err := w.options.beginInPlace(ctx)
	if err != nil {
		w.unreserve(fd, st)
		return err
	}
	defer end()
	n, err := w.content.writeTo(ctx, old)
	if err == nil && n < max(st.Size, w.content.size) {
		err = sys.Ftruncate(fd, n)
	}
	if err != nil {
		return &WriteError{Path: w.path, Err: cause(err), Unchanged: n == 0, Partial: n > 0}
	}
	if w.options.Mode != nil && ModeBits(*w.options.Mode)&setID != 0 { // writing may have taken these bits away
		err = w.setMode(fd)
	}
	if err == nil {
		err = w.finish(old)
	}
	return w.failed("finish", err)
}

// unreserve frees the blocks that a failed reservation may have left beyond the end.
func (w *writer) unreserve(fd int, before unix.Stat_t) {
	var st unix.Stat_t
	if sys.Fstat(fd, &st) == nil && st.Blocks != before.Blocks {
		sys.Ftruncate(fd, st.Size) // not before.Size: another program may have appended to the file
	}
}

// fill writes the content and the mode of a temporary file.
func (w *writer) fill(ctx context.Context, f *os.File) error {
	if _, err := w.content.writeTo(ctx, f); err != nil {
		return err
	}
	if err := w.setMode(int(f.Fd())); err != nil {
		return err
	}
	return w.finish(f)
}

// setID are the bits of a mode with which a program runs as its owner or group.
const setID = unix.S_ISUID | unix.S_ISGID

// finish sets the time, and waits for the disk if requested.
func (w *writer) finish(f *os.File) error {
	if w.options.Modified != nil {
		if !haveProc() {
			return unix.ENOSYS
		}
		if err := (pathAt{dirfd: unix.AT_FDCWD, name: fdPath(int(f.Fd()))}).chtimes(*w.options.Modified); err != nil {
			return err
		}
	}
	if w.options.Durable {
		return syncFile(f)
	}
	return nil
}

// setMode sets the mode, if one is requested, except setID bits that the kernel refuses.
func (w *writer) setMode(fd int) error {
	if w.options.Mode == nil {
		return nil
	}
	mode := ModeBits(*w.options.Mode)
	err := sys.Fchmod(fd, mode)
	if err == unix.EPERM && mode&setID != 0 { // as in a sandbox
		err = sys.Fchmod(fd, mode&^setID)
	}
	return err
}

// sync makes a change of a directory durable.
func (w *writer) sync(target pathAt) error {
	if !w.options.Durable {
		return nil
	}
	fd, err := pathAt{dirfd: target.dirfd, name: "."}.open(unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return w.failed("sync", err)
	}
	dir := newFile(fd, "directory")
	defer dir.Close()
	return w.failed("sync", syncFile(dir))
}

func (w *writer) writeDevice(ctx context.Context, p pathAt) error {
	if w.options.ExpectedSHA256 != "" || w.options.Replace || w.options.Links == NoFollow {
		return &Refusal{textNotRegular}
	}
	fd, err := p.open(unix.O_WRONLY, 0)
	if err != nil {
		return w.failed("open", err)
	}
	f := sys.NewFile(uintptr(fd), w.path) // non-blocking, so the deadline below works
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return errRetry
	}
	defer context.AfterFunc(ctx, func() { f.SetWriteDeadline(time.Unix(1, 0)) })()
	if _, err := w.content.writeTo(ctx, f); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return w.failed("write", err)
	}
	return nil
}

func (w *writer) verify(ctx context.Context, fd int, want string) error {
	// Open the same file again for reading, by its number, because its name may be
	// another file's by now.
	if !haveProc() {
		return w.failed("open", unix.ENOSYS)
	}
	rd, err := sys.Open(fdPath(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return w.failed("open", err)
	}
	f := newFile(rd, w.path)
	defer f.Close()
	err = checkExpected(ctx, f, want)
	if _, changed := errors.AsType[*ChangedError](err); changed {
		return err
	}
	return w.failed("read", err)
}

func (w *writer) failed(op string, err error) error { return pathError(op, w.path, err) }
