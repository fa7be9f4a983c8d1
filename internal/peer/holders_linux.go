package peer

import (
	"bytes"
	"encoding/binary"
	"os"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
)

// OwnNamespace is the process namespace of this program; "": unknown.
var OwnNamespace = sync.OnceValue(func() string {
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	return namespace
})

// maxRecent is how many processes that were found Holders looks at first.
const maxRecent = 8

// Holders finds the processes that hold sockets. It remembers those that it has
// found, because clients connect again. The zero value is ready, and may be used
// concurrently.
type Holders struct {
	mu     sync.Mutex
	recent []int // the latest last
}

// Namespace returns the process namespace of a process that holds a socket, as
// /proc spells it. ok is false when no process holds it that this program may look
// at: the socket may be closed, on its way to another process, or held by a process
// of another user.
func (h *Holders) Namespace(inode uint64) (namespace string, ok bool) {
	search := search{wanted: "socket:[" + strconv.FormatUint(inode, 10) + "]"}
	h.mu.Lock()
	recent := slices.Clone(h.recent)
	h.mu.Unlock()
	for _, pid := range slices.Backward(recent) {
		if namespace, ok = search.in(pid); ok {
			h.remember(pid)
			return namespace, true
		}
	}
	pids, err := procfs.Pids()
	if err != nil {
		return "", false
	}
	own := os.Getpid()
	for _, pid := range youngestFirst(pids) { // who connects is often young
		if pid == own || slices.Contains(recent, pid) {
			continue
		}
		if namespace, ok = search.in(pid); ok {
			h.remember(pid)
			return namespace, true
		}
	}
	return "", false
}

// youngestFirst orders processes, which are listed by number, as the kernel has
// given the numbers: when they are used up, it begins again.
func youngestFirst(pids []int) []int {
	slices.Reverse(pids)
	loads, err := os.ReadFile("/proc/loadavg") // its last word is the latest number
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
	wanted  string // what the link of its descriptor says
	entries [8 << 10]byte
	link    [64]byte
}

// in returns the namespace of a process if it holds the socket. The directory that
// is open belongs to one process for good: a number that is given to another
// process meanwhile misleads nobody.
func (s *search) in(pid int) (namespace string, ok bool) {
	dir, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer unix.Close(dir)
	if !s.among(dir) {
		return "", false
	}
	n, err := unix.Readlinkat(dir, "../ns/pid", s.link[:])
	if err != nil {
		return "", false
	}
	return string(s.link[:n]), true
}

// among looks through a directory of descriptors.
func (s *search) among(dir int) bool {
	for {
		n, err := unix.ReadDirent(dir, s.entries[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return false
		}
		// 8 bytes inode, 8 offset, 2 length, 1 type, then the name.
		for rest := s.entries[:n]; len(rest) > 19; {
			length := int(binary.NativeEndian.Uint16(rest[16:]))
			if length <= 19 || length > len(rest) {
				return false
			}
			name, _, _ := bytes.Cut(rest[19:length], []byte{0})
			rest = rest[length:]
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
