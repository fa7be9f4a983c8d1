package sandbox

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// inode is the number of a file in its file system.
func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// changeTime is when a file has changed; nobody can set it.
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

// isRoots reports whether a file belongs to the superuser.
func isRoots(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0
}

// isForeign reports whether what is at a path was put there by somebody else who
// may write in its directory, as in /tmp. It must not keep a command from being
// started.
func isForeign(path string, info fs.FileInfo) bool {
	if isOwn(info) {
		return false
	}
	dir, err := os.Lstat(filepath.Dir(path))
	return err == nil && (!isOwn(dir) || dir.Mode().Perm()&0o022 != 0)
}
