package filesystem

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// InProc reports whether an open file is in /proc, whatever path led to it. The content
// of such a file may depend on the process that opened it.
func InProc(f *os.File) bool {
	var st unix.Statfs_t
	err := unix.Fstatfs(int(f.Fd()), &st)
	return err != nil || st.Type == unix.PROC_SUPER_MAGIC
}

// IsOwnProcess reports whether an open file describes this program itself, such as its
// memory.
func IsOwnProcess(f *os.File) bool {
	if !InProc(f) {
		return false
	}
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	rest, ok := strings.CutPrefix(path, "/proc/")
	if err != nil || !ok {
		return true // unknown, so assume it does
	}
	number, _, _ := strings.Cut(rest, "/")
	if _, err := strconv.Atoi(number); err != nil {
		return false
	}
	_, err = os.Lstat("/proc/self/task/" + number) // each thread has a name like a process
	return err == nil
}
