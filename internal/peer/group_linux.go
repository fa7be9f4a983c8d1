package peer

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// rootGroup is the id of the root control group. The kernel also reports it when it does
// not know in which group a socket was made.
const rootGroup = 1

// firstGroup is the control group when the program starts.
var firstGroup = sync.OnceValue(fixedGroup)

// MadeElsewhere reports whether a socket was made in a control group that no process
// started by this program can enter, because it runs as a user who may not move processes
// out of the program's own group. false means that the group says nothing.
//
// The kernel records the group when a socket is made, and never changes it, even if the
// socket is passed on or its maker has ended.
func (s Socket) MadeElsewhere() bool {
	if s.Group <= rootGroup {
		return false
	}
	own := fixedGroup()
	return own != 0 && own == firstGroup() && own != s.Group
}

// fixedGroup returns the id of this program's control group if everything that it starts
// must stay in it. It returns 0 if not, or if it cannot find out.
func fixedGroup() uint64 {
	if os.Geteuid() == 0 {
		return 0
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	_, rest, found := bytes.Cut(append([]byte{'\n'}, groups...), []byte("\n0::/"))
	path, _, _ := strings.Cut(string(rest), "\n")
	root := groupRoot()
	if !found || root == "" || strings.Contains("/"+path+"/", "/../") {
		return 0
	}
	own := filepath.Join(root, path)
	for dir := own; ; dir = filepath.Dir(dir) {
		if !closed(dir+"/cgroup.procs") || !closed(dir+"/cgroup.threads") {
			return 0
		}
		if dir == root {
			break
		}
	}
	var st unix.Stat_t
	if unix.Stat(own, &st) != nil {
		return 0
	}
	return st.Ino
}

// groupRoot returns the mount point of control groups of version 2.
func groupRoot() string {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	return ""
}

// closed reports whether only root can write a file.
func closed(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0 && info.Mode().Perm()&0o022 == 0
}
