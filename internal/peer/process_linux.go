package peer

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
)

// process is a process by its directory in /proc. The open directory belongs to one process
// for good, so another one that gets the number causes no mistake.
type process struct{ dir int }

func openProcess(pid string) (process, error) {
	dir, err := unix.Open("/proc/"+pid, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return process{dir}, err
}

func (p process) close() { _ = unix.Close(p.dir) }

// limits are what confines a process, and whose it is.
type limits struct {
	users      []int // real, effective, saved and of the file system
	depth      int   // of its process namespace, counted from the one of /proc
	noNewPrivs bool
	filters    int // of system calls
	ended      bool
}

// limits reads the limits of a process. Every user may, unless /proc hides the process.
func (p process) limits() (limits, error) {
	text, err := p.read("status")
	if err != nil {
		return limits{}, err
	}
	return parseLimits(text)
}

// read reads a small file of a process.
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
	if !counted && mode != 0 { // Linux counts them from 5.9 on
		l.filters = 1
	}
	l.ended = l.ended && threads <= 1 // otherwise only its first thread has
	if l.depth == 0 || len(l.users) == 0 {
		return limits{}, errors.New("the kernel does not say what confines a process")
	}
	return l, nil
}

// ownLimits are those of this program. An error says that /proc does not show it.
var ownLimits = sync.OnceValues(func() (limits, error) {
	p, err := openProcess("self")
	if err != nil {
		return limits{}, err
	}
	defer p.close()
	return p.limits()
})

// beyond says what confines a process and not the process with the limits own; "" if nothing
// does.
func (l limits) beyond(own limits) string {
	switch {
	case l.depth > own.depth:
		return "in a process namespace of its own"
	case l.noNewPrivs && l.filters > own.filters:
		return "with a filter of system calls of its own"
	}
	return ""
}

// sharesNetwork reports whether a process is, or may be, in this program's network
// namespace. Entries of /proc/PID/net have the same inode if and only if they are of the same
// namespace, and everybody may look.
func (p process) sharesNetwork() bool {
	var own, its unix.Stat_t
	if unix.Stat("/proc/self/net/tcp", &own) != nil || unix.Fstatat(p.dir, "net/tcp", &its, 0) != nil {
		return true
	}
	return own.Ino == its.Ino
}

// owner returns the user who owns the directory of a process: the process's own, or root if
// its descriptors are closed to that one.
func owner(pid int) (uid int, ok bool) {
	var st unix.Stat_t
	if unix.Stat("/proc/"+strconv.Itoa(pid), &st) != nil {
		return 0, false
	}
	return int(st.Uid), true
}

// hides returns whether /proc hides processes from this program that are its own user's.
var hides = sync.OnceValue(func() bool {
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

// isGone reports whether an error of /proc says that there is no such process.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }
