package sys

import (
	"bytes"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// CopyAttributes gives the file to the owner, the extended attributes and the mode of
// from, which it is about to replace. st is the status of from. After an error to must not
// replace from.
func CopyAttributes(to, from *os.File, st unix.Stat_t) error {
	fd := int(to.Fd())
	var now unix.Stat_t
	if err := Fstat(fd, &now); err != nil {
		return err
	}
	if now.Uid != st.Uid || now.Gid != st.Gid {
		if err := Fchown(fd, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if err := copyXattrs(fd, int(from.Fd())); err != nil {
		return err
	}
	mode := st.Mode & 0o7777
	if os.Geteuid() != 0 {
		// The kernel does the same when a user writes to another user's program.
		if mode &^= unix.S_ISUID; mode&unix.S_IXGRP != 0 {
			mode &^= unix.S_ISGID
		}
	}
	return Fchmod(fd, mode)
}

func copyXattrs(to, from int) error {
	names, err := listXattrs(from)
	if err != nil {
		return err
	}
	inherited, err := listXattrs(to) // from the directory, such as a default ACL
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
		if current, err := getXattr(to, name); err == nil && bytes.Equal(current, value) {
			continue
		}
		if err := Fsetxattr(to, name, value, 0); err != nil {
			return err
		}
	}
	for _, name := range inherited {
		if !wanted[name] && !strings.HasPrefix(name, "security.") {
			if err := Fremovexattr(to, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// boundToContent reports whether an attribute is valid only for the content of its file. The
// kernel drops or recomputes such an attribute when the file is written.
func boundToContent(name string) bool {
	return name == "security.capability" || name == "security.ima" || name == "security.evm"
}

func listXattrs(fd int) ([]string, error) {
	buf, err := grow(func(b []byte) (int, error) { return Flistxattr(fd, b) })
	if err == unix.ENOTSUP {
		return nil, nil
	}
	if err != nil || len(buf) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(buf), "\x00"), "\x00"), nil
}

func getXattr(fd int, name string) ([]byte, error) {
	return grow(func(b []byte) (int, error) { return Fgetxattr(fd, name, b) })
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
