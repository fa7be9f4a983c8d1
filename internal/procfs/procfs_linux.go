package procfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// Stat is the content of /proc/PID/stat. Pid and Start together identify a process for
// good: the kernel reuses a pid only after its process has ended, and the new process
// starts later.
type Stat struct {
	Pid     int
	Parent  int
	Group   int
	Session int
	State   byte // of its first thread, as in ps: R, S, D, Z, …
	Threads int
	Start   uint64 // clock ticks since boot
}

// Ended reports whether the process has exited, reaped or not. A process whose first thread
// has exited while others run looks like a zombie, too.
func (s Stat) Ended() bool { return (s.State == 'Z' || s.State == 'X') && s.Threads <= 1 }

// ErrGone reports that the process does not exist any more.
var ErrGone = errors.New("the process is gone")

// LastPid returns the pid that the kernel has assigned last in this program's PID namespace. It
// assigns them in ascending order, and begins with the lowest again after the highest. LastPid
// returns 0 if /proc has only processes (the mount option subset=pid).
func LastPid() (int, error) {
	text, err := sys.ReadFile("/proc/loadavg")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 5 {
		return 0, fmt.Errorf("read the last pid: /proc/loadavg is %q", text)
	}
	return strconv.Atoi(fields[4])
}

// Pids returns the ids of all processes, in ascending order.
func Pids() ([]int, error) {
	fd, err := sys.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/proc", Err: err}
	}
	defer sys.Close(fd)
	var pids []int
	entries := make([]byte, 32<<10)
	for {
		n, err := sys.ReadDirent(fd, entries)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: "/proc", Err: err}
		}
		if n <= 0 {
			return pids, nil
		}
		for name := range Names(entries[:n]) {
			if pid, ok := number(name); ok {
				pids = append(pids, int(pid))
			}
		}
	}
}

// Names returns the names among directory entries as unix.ReadDirent reads them: 8 bytes
// inode, 8 offset, 2 length, 1 type, then the name.
func Names(entries []byte) iter.Seq[[]byte] {
	const nameOffset = 19
	return func(yield func([]byte) bool) {
		for len(entries) > nameOffset {
			length := int(binary.NativeEndian.Uint16(entries[16:]))
			if length <= nameOffset || length > len(entries) {
				return
			}
			name, _, _ := bytes.Cut(entries[nameOffset:length], []byte{0})
			if !yield(name) {
				return
			}
			entries = entries[length:]
		}
	}
}

// ReadStat reads the Stat of a process. It returns ErrGone if the process does not exist.
func ReadStat(pid int) (Stat, error) {
	var space [1024]byte
	text, err := read(pid, "/stat", space[:])
	if err != nil {
		return Stat{}, err
	}
	// The name is in parentheses and may contain anything.
	end := bytes.LastIndexByte(text, ')')
	s := Stat{Pid: pid}
	ok := end >= 0
	field := 2
	for rest := text[end+1:]; ok && len(rest) > 0 && field < 22; {
		var word []byte
		rest = bytes.TrimLeft(rest, " ")
		word, rest, _ = bytes.Cut(rest, []byte{' '})
		field++
		var n uint64
		switch field {
		case 3:
			if ok = len(word) > 0; ok {
				s.State = word[0]
			}
		case 4:
			n, ok = number(word)
			s.Parent = int(n)
		case 5:
			n, ok = number(word)
			s.Group = int(n)
		case 6:
			n, ok = number(word)
			s.Session = int(n)
		case 20:
			n, ok = number(word)
			s.Threads = int(n)
		case 22:
			s.Start, ok = number(word)
		}
	}
	if !ok || field < 22 {
		return Stat{}, fmt.Errorf("/proc/%d/stat is malformed: %q", pid, text)
	}
	return s, nil
}

// read reads a small file of a process into b.
func read(pid int, name string, b []byte) ([]byte, error) {
	path := "/proc/" + strconv.Itoa(pid) + name
	fd, err := sys.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, gone(path, err)
	}
	defer sys.Close(fd)
	for {
		n, err := sys.Read(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, gone(path, err)
		}
		return b[:n], nil
	}
}

func gone(path string, err error) error {
	if err == unix.ENOENT || err == unix.ESRCH {
		return ErrGone
	}
	return &os.PathError{Op: "read", Path: path, Err: err}
}

// number parses digits. strconv would need a copy.
func number(digits []byte) (n uint64, ok bool) {
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, len(digits) > 0
}

// maxCommandLine bounds what CommandLine reads, because a process may set any length.
const maxCommandLine = 64 << 10

// CommandLine returns the command line that a process shows, at most 64 KiB of it. It
// returns nil if the process is gone or shows none.
func CommandLine(pid int) []string {
	f, err := sys.OpenFile("/proc/"+strconv.Itoa(pid)+"/cmdline", os.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	text := make([]byte, maxCommandLine)
	n := 0
	for n < len(text) {
		m, err := f.Read(text[n:])
		n += m
		if m == 0 || err != nil {
			break
		}
	}
	line := strings.TrimSuffix(string(text[:n]), "\x00")
	if line == "" {
		return nil
	}
	return strings.Split(line, "\x00")
}

// CheckNamespace returns an error if /proc belongs to another PID namespace than this
// program's, so that its pids do not match those of system calls.
var CheckNamespace = sync.OnceValue(func() error {
	status, err := sys.ReadFile("/proc/self/status")
	switch {
	case errors.Is(err, unix.ENOENT):
		return errors.New("/proc does not show this program; mount the /proc of its process namespace")
	case err == nil && !shows(string(status), os.Getpid()):
		return errors.New("/proc belongs to another process namespace; mount the one of this program's, as unshare --mount-proc does")
	}
	return nil // the process exists, even if it cannot be read now
})

// shows reports whether the status of a process contains the id pid in the namespace of
// /proc and none in a namespace below.
func shows(status string, pid int) bool {
	own := strconv.Itoa(pid)
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		if (name == "Pid" || name == "NSpid") && strings.TrimSpace(value) != own {
			return false
		}
	}
	return true
}

// Mount is one line of /proc/self/mountinfo.
type Mount struct {
	ID      uint64 // as in statx
	Device  string // of the file system, as the kernel numbers it
	Root    string // the directory of the file system that is mounted
	Point   string // where it is mounted
	Type    string // of the file system
	Options string // of the file system, separated by commas
}

// Mounts lists the mounts in this program's mount namespace.
func Mounts() ([]Mount, error) {
	text, err := sys.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var mounts []Mount
	for line := range strings.Lines(string(text)) {
		front, back, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		fields, system := strings.Fields(front), strings.Fields(back)
		if len(fields) < 5 || len(system) < 1 {
			continue
		}
		m := Mount{Device: fields[2], Root: unescape(fields[3]), Point: unescape(fields[4]), Type: system[0]}
		if m.ID, err = strconv.ParseUint(fields[0], 10, 64); err != nil {
			return nil, fmt.Errorf("understand /proc/self/mountinfo: %w", err)
		}
		if len(system) > 2 {
			m.Options = system[2]
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// unescape decodes the octal escapes of mountinfo.
func unescape(s string) string {
	for _, c := range []string{" ", "\t", "\n", `\`} {
		s = strings.ReplaceAll(s, fmt.Sprintf(`\%03o`, c[0]), c)
	}
	return s
}

// Usage is the processor time that a process and its reaped children have used, and the
// memory of the process. Memory that it shares with others counts for each of them.
type Usage struct {
	CPU         time.Duration
	MemoryBytes int64
}

// tick is the unit of processor times in /proc: the kernel shows a hundredth of a second
// to programs, whatever it uses itself.
const tick = time.Second / 100

// ReadUsage reads the Usage of a process. It returns ErrGone if the process does not exist.
func ReadUsage(pid int) (Usage, error) {
	var space [1024]byte
	text, err := read(pid, "/stat", space[:])
	if err != nil {
		return Usage{}, err
	}
	// The name is in parentheses and may contain anything. The state, the third field, is
	// the first one after it.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const first, utime, cstime, rss = 3, 14, 17, 24
	if len(fields) <= rss-first {
		return Usage{}, fmt.Errorf("/proc/%d/stat is malformed: %q", pid, text)
	}
	var ticks uint64
	for _, field := range fields[utime-first : cstime-first+1] { // user and system, its own and that of children
		n, _ := number(field)
		ticks += n
	}
	pages, _ := number(fields[rss-first])
	return Usage{time.Duration(ticks) * tick, int64(pages) * int64(os.Getpagesize())}, nil
}
