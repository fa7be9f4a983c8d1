//go:build unix

package trusted

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// check refuses a file that others can change or, if it is secret, read. The error says
// how to fix that.
func check(path string, info fs.FileInfo, kind Kind) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to the user %d, who could change it; it must belong to the user %d, as whom this program runs, or to root",
			st.Uid, os.Geteuid())
	}
	switch mode := info.Mode().Perm(); {
	case kind == Secret && mode&0o077 != 0:
		return fmt.Errorf("its permissions are %04o, so that others can read or change it; run: chmod 600 %s", mode, path)
	case mode&0o022 != 0:
		return fmt.Errorf("its permissions are %04o, so that others can change it; run: chmod go-w %s", mode, path)
	}
	return nil
}
