//go:build unix

package workspace

import (
	"io/fs"
	"os"
	"syscall"
)

// strangerOf returns the owner of a file unless it is the user of this program or root.
func strangerOf(info fs.FileInfo) (uid uint32, ok bool) {
	st, known := info.Sys().(*syscall.Stat_t)
	if !known || st.Uid == 0 || int(st.Uid) == os.Geteuid() {
		return 0, false
	}
	return st.Uid, true
}
