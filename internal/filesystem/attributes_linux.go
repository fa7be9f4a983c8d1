package filesystem

import (
	"bytes"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// keepAttributes gives f the owner, the extended attributes and the mode of old. After an
// error f cannot replace old.
func keepAttributes(f, old *os.File, st unix.Stat_t) error {
	fd := int(f.Fd())
	var have unix.Stat_t
	if err := sys.Fstat(fd, &have); err != nil {
		return err
	}
	if have.Uid != st.Uid || have.Gid != st.Gid {
		if err := sys.Fchown(fd, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if err := copyXattrs(fd, int(old.Fd())); err != nil {
		return err
	}
	mode := st.Mode & 0o7777
	if os.Geteuid() != 0 {
		// The kernel does the same when somebody writes to another user's program.
		if mode &^= unix.S_ISUID; mode&unix.S_IXGRP != 0 {
			mode &^= unix.S_ISGID
		}
	}
	return sys.Fchmod(fd, mode)
}

func copyXattrs(to, from int) error {
	names, err := listXattrs(from)
	if err != nil {
		return err
	}
	have, err := listXattrs(to)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
		if boundToContent(name) {
			continue
		}
		value, err := getXattr(from, name)
		if err != nil {
			return err
		}
		if there, err := getXattr(to, name); err == nil && bytes.Equal(there, value) {
			continue
		}
		if err := sys.Fsetxattr(to, name, value, 0); err != nil {
			return err
		}
	}
	for _, name := range have { // those that f got from the directory, such as a default ACL
		if !wanted[name] && !strings.HasPrefix(name, "security.") {
			if err := sys.Fremovexattr(to, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// boundToContent reports whether an attribute vouches for the old content. The kernel
// itself drops or recomputes such an attribute when a file is written.
func boundToContent(name string) bool {
	return name == "security.capability" || name == "security.ima" || name == "security.evm"
}

func listXattrs(fd int) ([]string, error) {
	buf, err := grow(func(b []byte) (int, error) { return sys.Flistxattr(fd, b) })
	if err == unix.ENOTSUP {
		return nil, nil
	}
	if err != nil || len(buf) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(buf), "\x00"), "\x00"), nil
}

func getXattr(fd int, name string) ([]byte, error) {
	return grow(func(b []byte) (int, error) { return sys.Fgetxattr(fd, name, b) })
}

// grow calls get with ever larger buffers until the answer fits.
func grow(get func([]byte) (int, error)) ([]byte, error) {
	for size := 1 << 10; ; size *= 4 {
		buf := make([]byte, size)
		n, err := get(buf)
		if err == unix.ERANGE && size < 1<<20 {
			continue
		}
		if err != nil {
			return nil, err
		}
		return buf[:n], nil
	}
}
