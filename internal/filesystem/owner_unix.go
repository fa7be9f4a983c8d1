//go:build unix && !linux

package filesystem

import (
	"io/fs"
	"syscall"
)

// owner returns the user and the group of a file.
func owner(info fs.FileInfo) (uid, gid *uint32) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, nil
	}
	return &st.Uid, &st.Gid
}
