package filesystem

import (
	"context"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

func createDirectory(ctx context.Context, file string, options CreateDirectoryOptions) error {
	switch {
	case !options.Recursive:
		p, err := locate(file, options.Links)
		if err != nil {
			return err
		}
		defer p.close()
		return pathError("mkdir", file, p.mkdir(options.Mode))
	case options.Links == NoFollow:
		return createTreeNoFollow(ctx, file, options.Mode)
	}
	return createTree(ctx, file, options.Mode)
}

// mkdir creates a directory. A nil mode is 0777 minus the umask.
func (p pathAt) mkdir(mode *fs.FileMode) error {
	perm := uint32(0o777)
	if mode != nil {
		perm = ModeBits(mode.Perm())
	}
	_, err := retry(func() (int, error) { return 0, sys.Mkdirat(p.dirfd, p.name, perm) })
	if err != nil || mode == nil {
		return err
	}
	if err := p.settle(ModeBits(*mode)); err != nil {
		sys.Unlinkat(p.dirfd, p.name, unix.AT_REMOVEDIR)
		return err
	}
	return nil
}

// settle gives a new directory the bits of its mode that the umask took away. Until then
// the directory gave no more rights than it will. Another program may have put another
// directory in its place meanwhile: settle leaves a directory of another user, or one
// that gives other rights, as it is.
func (p pathAt) settle(mode uint32) error {
	fd, err := p.open(unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer sys.Close(fd)
	var st unix.Stat_t
	if err := sys.Fstat(fd, &st); err != nil {
		return err
	}
	have := st.Mode & 0o7777
	switch {
	case have == mode:
		return nil
	case have&^(mode|unix.S_ISGID) != 0 || int(st.Uid) != os.Geteuid():
		return unix.EBUSY
	case !haveProc():
		return unix.ENOSYS
	}
	return pathAt{dirfd: unix.AT_FDCWD, name: fdPath(fd)}.chmod(mode)
}

// createTree starts at the end of the path, because most of a path usually exists.
func createTree(ctx context.Context, file string, mode *fs.FileMode) error {
	var missing []string // deepest first
	for dir := file; ; dir = path.Dir(dir) {
		p := pathAt{dirfd: unix.AT_FDCWD, name: dir}
		err := p.mkdir(modeFor(dir == file, mode))
		if err == unix.ENOENT && dir != "/" {
			missing = append(missing, dir)
			continue
		}
		if err != nil {
			// An existing directory is fine, even if mkdir reports another error, such as
			// EROFS.
			if st, statErr := p.stat(0); statErr != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
				return pathError("mkdir", file, err)
			}
		}
		break
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p := pathAt{dirfd: unix.AT_FDCWD, name: missing[i]}
		if err := p.mkdir(modeFor(i == 0, mode)); err != nil {
			// Another program may have created it first.
			if st, statErr := p.stat(0); statErr != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
				return pathError("mkdir", file, err)
			}
		}
	}
	return nil
}

// modeFor returns the mode of a directory, nil for the parents of the last.
func modeFor(last bool, mode *fs.FileMode) *fs.FileMode {
	if !last {
		return nil
	}
	return mode
}

// createTreeNoFollow enters every directory that it finds or creates.
func createTreeNoFollow(ctx context.Context, file string, mode *fs.FileMode) error {
	fd, err := openDirAt(unix.AT_FDCWD, "/")
	parts := strings.Split(strings.Trim(file, "/"), "/")
	for i, part := range parts {
		if err != nil || part == "" {
			break
		}
		if ctx.Err() != nil {
			sys.Close(fd)
			return context.Cause(ctx)
		}
		parent := fd
		fd, err = openDirAt(parent, part)
		if err == unix.ENOENT {
			if err = (pathAt{dirfd: parent, name: part}).mkdir(modeFor(i == len(parts)-1, mode)); err == nil || err == unix.EEXIST {
				fd, err = openDirAt(parent, part)
			}
		}
		sys.Close(parent)
	}
	if err != nil {
		return pathError("mkdir", file, err)
	}
	return sys.Close(fd)
}

func rename(from, to string, options RenameOptions) error {
	src, err := locate(from, options.Links)
	if err != nil {
		return err
	}
	defer src.close()
	dst, err := locate(to, options.Links)
	if err != nil {
		return err
	}
	defer dst.close()
	if options.Links == NoFollow {
		for _, p := range []pathAt{src, dst} {
			if st, err := p.stat(unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
				return &Refusal{textLinkInPath}
			}
		}
	}
	var flags uint
	if options.NoReplace {
		flags = unix.RENAME_NOREPLACE
	}
	err = sys.Renameat2(src.dirfd, src.name, dst.dirfd, dst.name, flags)
	return pathError("rename", from, err)
}

func symlink(target, path string, links Links) error {
	p, err := locate(path, links)
	if err != nil {
		return err
	}
	defer p.close()
	return pathError("symlink", path, sys.Symlinkat(target, p.dirfd, p.name))
}

func readLink(path string, links Links) (string, error) {
	p, err := locate(path, links)
	if err != nil {
		return "", err
	}
	defer p.close()
	text, err := p.readLink()
	return text, pathError("readlink", path, err)
}
