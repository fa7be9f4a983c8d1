package client

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// keepAttributes gives file the owner, the extended attributes and the mode of old, which it
// is to replace. It fails if old has other names, which would keep the old content.
func keepAttributes(file, old *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(old.Fd()), &st); err != nil {
		return err
	}
	if st.Nlink > 1 {
		return syscall.ETXTBSY
	}
	if err := file.Chown(int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	list := make([]byte, maxAttribute)
	n, err := unix.Flistxattr(int(old.Fd()), list)
	if err != nil && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	value := make([]byte, maxAttribute)
	for name := range strings.SplitSeq(string(list[:max(n, 0)]), "\x00") {
		if name == "" || strings.HasPrefix(name, "security.") { // the system's own
			continue
		}
		n, err := unix.Fgetxattr(int(old.Fd()), name, value)
		if err == nil {
			err = unix.Fsetxattr(int(file.Fd()), name, value[:n], 0)
		}
		if err != nil {
			return err
		}
	}
	return unix.Fchmod(int(file.Fd()), st.Mode&0o7777) // last, because a new owner takes bits away
}

// maxAttribute bounds an extended attribute, and the list of their names (xattr(7)).
const maxAttribute = 64 << 10
