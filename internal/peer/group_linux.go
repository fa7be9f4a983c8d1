package peer

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// rootGroup is the id of the root control group. The kernel also reports it when it does
// not know in which group a socket was made.
const rootGroup = 1

// madeBy reports whether a process, or one from which it has the socket, may have made a
// socket, by the control group in which that was made. The kernel records the group once and
// for all. It proves something only about a process that its user may not move.
func (s Socket) madeBy(p process) bool {
	if s.Group <= rootGroup {
		return true
	}
	group := p.fixedGroup()
	return group == 0 || group == s.Group
}

// fixedGroup returns the id of a process's control group if this program's user may not move
// the process to another one. It returns 0 if not, or if it cannot find out.
func (p process) fixedGroup() uint64 {
	if os.Geteuid() == 0 {
		return 0
	}
	groups, err := p.read("cgroup")
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
