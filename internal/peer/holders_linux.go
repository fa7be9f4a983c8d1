package peer

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
)

// maxRecent is how many of the processes found last are examined first.
const maxRecent = 8

// Holders finds the processes that hold sockets. It remembers the processes found, because
// clients reconnect. The zero value is ready to use. Its methods may be called
// concurrently.
type Holders struct {
	mu     sync.Mutex
	recent []int // latest last
}

// PID returns a process that holds a socket. ok is false if no process that this program
// may examine holds it: the socket may be closed, in flight to another process, or held by
// a process of another user. If a process has inherited the socket, as a child before its
// exec, PID returns the parent that also holds it.
func (h *Holders) PID(s Socket) (pid int, ok bool) {
	for range 3 {
		if pid, ok = h.find(s); !ok {
			return 0, false
		}
		if pid, ok = oldest(pid, s); ok {
			return pid, true
		}
		// The process found has exited, and another one may still hold the socket.
	}
	return 0, false
}

// oldest returns the first of a holder's ancestors such that it and all between hold the
// socket. ok is false if the holder has exited.
func oldest(pid int, s Socket) (_ int, ok bool) {
	search := newSearch(s.Inode)
	for {
		stat, err := procfs.ReadStat(pid)
		if err != nil {
			return 0, false
		}
		if !search.in(stat.Parent) {
			return pid, true
		}
		pid = stat.Parent
	}
}

// find finds a process that holds a socket, among the processes of its user and of root.
func (h *Holders) find(s Socket) (pid int, ok bool) {
	search := newSearch(s.Inode)
	h.mu.Lock()
	recent := slices.Clone(h.recent)
	h.mu.Unlock()
	for _, pid := range slices.Backward(recent) {
		if search.in(pid) {
			h.remember(pid)
			return pid, true
		}
	}
	pids, err := procfs.Pids()
	if err != nil {
		return 0, false
	}
	for _, pid := range youngestFirst(pids) { // a client is often young
		if slices.Contains(recent, pid) {
			continue
		}
		// Reading the descriptors of every process would be slow.
		if uid, ok := owner(pid); !ok || uid != s.UID && uid != 0 {
			continue
		}
		if search.in(pid) {
			h.remember(pid)
			return pid, true
		}
	}
	return 0, false
}

// youngestFirst sorts processes, given in the order of their pids, by age. The kernel
// starts again with low pids when it has used up the range.
func youngestFirst(pids []int) []int {
	slices.Reverse(pids)
	loads, err := os.ReadFile("/proc/loadavg") // its last word is the latest pid
	if err != nil {
		return pids
	}
	words := bytes.Fields(loads)
	latest, err := strconv.Atoi(string(words[len(words)-1]))
	if err != nil {
		return pids
	}
	older := slices.IndexFunc(pids, func(pid int) bool { return pid <= latest })
	return append(slices.Clone(pids[max(older, 0):]), pids[:max(older, 0)]...)
}

func (h *Holders) remember(pid int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recent = slices.DeleteFunc(h.recent, func(known int) bool { return known == pid })
	if len(h.recent) == maxRecent {
		h.recent = slices.Delete(h.recent, 0, 1)
	}
	h.recent = append(h.recent, pid)
}

// search looks for one socket among the descriptors of processes.
type search struct {
	wanted  string // the target of the socket's link in /proc/PID/fd
	entries [8 << 10]byte
	link    [64]byte
}

func newSearch(inode uint64) search {
	return search{wanted: "socket:[" + strconv.FormatUint(inode, 10) + "]"}
}

// in reports whether a process holds the socket, as far as this program may see.
func (s *search) in(pid int) bool {
	dir, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	return s.among(dir)
}

// among searches a directory of descriptors.
func (s *search) among(dir int) bool {
	for {
		n, err := unix.ReadDirent(dir, s.entries[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return false
		}
		for name := range procfs.Names(s.entries[:n]) {
			if name[0] == '.' {
				continue
			}
			n, err := unix.Readlinkat(dir, string(name), s.link[:])
			if err == nil && string(s.link[:n]) == s.wanted {
				return true
			}
		}
	}
}
