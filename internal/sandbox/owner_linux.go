package sandbox

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// inode returns the number of a file in its file system.
func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// changeTime returns when a file changed. No program can set it.
func changeTime(info fs.FileInfo) time.Time {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return time.Unix(st.Ctim.Unix())
	}
	return info.ModTime()
}

// isOwn reports whether a file belongs to this program's user.
func isOwn(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// isRoots reports whether a file belongs to root.
func isRoots(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0
}

// isForeign reports whether another user who may write in the directory, as in /tmp,
// created the file. Such a file must not keep a command from starting.
func isForeign(path string, info fs.FileInfo) bool {
	if isOwn(info) {
		return false
	}
	dir, err := os.Lstat(filepath.Dir(path))
	return err == nil && (!isOwn(dir) || dir.Mode().Perm()&0o022 != 0)
}
