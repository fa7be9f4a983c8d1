package filesystem

import (
	"context"
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
		return pathError("mkdir", file, p.mkdir())
	case options.Links == NoFollow:
		return createTreeNoFollow(ctx, file)
	}
	return createTree(ctx, file)
}

func (p place) mkdir() error {
	_, err := retry(func() (int, error) { return 0, sys.Mkdirat(p.dir, p.name, 0o777) })
	return err
}

// createTree starts at the far end, since most of a path usually exists.
func createTree(ctx context.Context, file string) error {
	var missing []string // deepest first
	for dir := file; ; dir = path.Dir(dir) {
		p := place{dir: unix.AT_FDCWD, name: dir}
		err := p.mkdir()
		if err == unix.ENOENT && dir != "/" {
			missing = append(missing, dir)
			continue
		}
		if err != nil {
			// Whatever mkdir says, such as EROFS: a directory is a directory.
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
		p := place{dir: unix.AT_FDCWD, name: missing[i]}
		if err := p.mkdir(); err != nil {
			// Someone else may have been faster.
			if st, statErr := p.stat(0); statErr != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
				return pathError("mkdir", file, err)
			}
		}
	}
	return nil
}

// createTreeNoFollow enters every directory it finds or makes.
func createTreeNoFollow(ctx context.Context, file string) error {
	fd, err := openDirAt(unix.AT_FDCWD, "/")
	for _, part := range strings.Split(strings.Trim(file, "/"), "/") {
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
			if err = (place{dir: parent, name: part}).mkdir(); err == nil || err == unix.EEXIST {
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
