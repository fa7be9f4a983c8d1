package client

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// keepAttributes gives file the owner, the extended attributes and the mode of old, which it
// is to replace. It fails if old has other names, which would keep the old content.
func keepAttributes(file, old *os.File) error {
	var st unix.Stat_t
	if err := sys.Fstat(int(old.Fd()), &st); err != nil {
		return err
	}
	if st.Nlink > 1 {
		return syscall.ETXTBSY
	}
	return sys.CopyAttributes(file, old, st)
}
