package peer

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
)

// process is an open directory /proc/PID, which stays bound to one process even if the pid
// is reused.
type process struct{ dir int }

func openProcess(pid string) (process, error) {
	dir, err := unix.Open("/proc/"+pid, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return process{dir}, err
}

func (p process) close() { _ = unix.Close(p.dir) }

// limits are the users and the confinement of a process.
type limits struct {
	users      []int // real, effective, saved and file system
	depth      int   // of its PID namespace, relative to that of /proc
	noNewPrivs bool
	filters    int // seccomp filters
	ended      bool
}

// limits reads the limits of a process. No privilege is needed, unless /proc hides the
// process.
func (p process) limits() (limits, error) {
	text, err := p.read("status")
	if err != nil {
		return limits{}, err
	}
	return parseLimits(text)
}

// read reads a small file in the directory.
func (p process) read(name string) ([]byte, error) {
	fd, err := unix.Openat(p.dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	text := make([]byte, 8<<10)
	for {
		n, err := unix.Read(fd, text)
		if err == unix.EINTR {
			continue
		}
		return text[:max(n, 0)], err
	}
}

// parseLimits parses the status file of a process.
func parseLimits(text []byte) (limits, error) {
	var l limits
	mode, threads, counted := 0, 0, false
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		fields := strings.Fields(string(value))
		if len(fields) == 0 {
			continue
		}
		first, _ := strconv.Atoi(fields[0])
		switch string(name) {
		case "State":
			l.ended = fields[0] == "Z" || fields[0] == "X"
		case "Uid":
			for _, field := range fields {
				uid, _ := strconv.Atoi(field)
				l.users = append(l.users, uid)
			}
		case "NSpid":
			l.depth = len(fields)
		case "Threads":
			threads = first
		case "NoNewPrivs":
			l.noNewPrivs = first != 0
		case "Seccomp":
			mode = first
		case "Seccomp_filters":
			l.filters, counted = first, true
		}
	}
	if !counted && mode != 0 { // Linux 5.9 and later count them
		l.filters = 1
	}
	l.ended = l.ended && threads <= 1 // otherwise only its first thread has ended
	if l.depth == 0 || len(l.users) == 0 {
		return limits{}, errors.New("the kernel does not report the confinement of processes")
	}
	return l, nil
}

// ownLimits are the limits of this program. An error means that /proc does not show it.
var ownLimits = sync.OnceValues(func() (limits, error) {
	p, err := openProcess("self")
	if err != nil {
		return limits{}, err
	}
	defer p.close()
	return p.limits()
})

// beyond returns what confines a process but not one with the limits own; "" if nothing
// does.
func (l limits) beyond(own limits) string {
	switch {
	case l.depth > own.depth:
		return "in a PID namespace of its own"
	case l.noNewPrivs && l.filters > own.filters:
		return "with a seccomp filter of its own"
	}
	return ""
}

// sharesNetwork reports whether a process is, or may be, in this program's network
// namespace. Entries of /proc/PID/net have the same inode exactly if they are in the same
// namespace, and reading them needs no privilege.
func (p process) sharesNetwork() bool {
	var own, its unix.Stat_t
	if unix.Stat("/proc/self/net/tcp", &own) != nil || unix.Fstatat(p.dir, "net/tcp", &its, 0) != nil {
		return true
	}
	return own.Ino == its.Ino
}

// owner returns the owner of /proc/PID: the user of the process, or root if it is not
// dumpable.
func owner(pid int) (uid int, ok bool) {
	var st unix.Stat_t
	if unix.Stat("/proc/"+strconv.Itoa(pid), &st) != nil {
		return 0, false
	}
	return int(st.Uid), true
}

// procHides reports whether /proc may hide processes from this program (hidepid).
var procHides = sync.OnceValue(func() bool {
	if os.Geteuid() == 0 {
		return false
	}
	mounts, err := procfs.Mounts()
	i := slices.IndexFunc(mounts, func(m procfs.Mount) bool { return m.Point == "/proc" })
	if err != nil || i < 0 {
		return false
	}
	for option := range strings.SplitSeq(mounts[i].Options, ",") {
		if how, ok := strings.CutPrefix(option, "hidepid="); ok {
			return how != "0" && how != "off"
		}
	}
	return false
})

// isGone reports whether an error of /proc means that the process is gone.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, procfs.ErrGone)
}

// rootGroup is the id of the root control group. The kernel also reports it if it does not
// know in which group a socket was made.
const rootGroup = 1

// mayBeMadeIn reports whether a process with a fixed control group, or one that passed it the
// socket, may have made a socket, judging by the control group in which the socket was made, which
// never changes. 0 means that the process has none.
func (s Socket) mayBeMadeIn(group uint64) bool {
	return s.Group <= rootGroup || group == 0 || group == s.Group
}

// fixedGroup returns the id of a process's control group if this program's user may not
// move the process to another one. Otherwise, or if it is unknown, it returns 0.
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
		if !onlyRootWrites(dir+"/cgroup.procs") || !onlyRootWrites(dir+"/cgroup.threads") {
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

// groupRoot returns the mount point of the cgroup2 hierarchy.
func groupRoot() string {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	return ""
}

// onlyRootWrites reports whether only root can write a file.
func onlyRootWrites(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0 && info.Mode().Perm()&0o022 == 0
}
