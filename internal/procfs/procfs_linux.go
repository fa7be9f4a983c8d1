package procfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// Stat is what /proc/PID/stat tells about a process. Pid and Start together
// name it for good: a number is given to another process only after it has
// ended, and that one starts later.
type Stat struct {
	Pid     int
	Parent  int
	Group   int
	Session int
	State   byte // of its first thread, as ps shows it: R, S, D, Z, …
	Threads int
	Start   uint64 // clock ticks since boot
}

// Ended reports whether the process runs no more, whether or not its parent has
// waited for it. One whose first thread has ended while others run looks like a
// zombie, too.
func (s Stat) Ended() bool { return (s.State == 'Z' || s.State == 'X') && s.Threads <= 1 }

// ErrGone says that there is no such process any more.
var ErrGone = errors.New("the process is gone")

// Pids lists the processes there are, in the kernel's order, which is that of
// the numbers.
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
		pids = appendPids(pids, entries[:n])
	}
}

// appendPids takes the names that are numbers from directory entries as the kernel
// writes them: 8 bytes inode, 8 offset, 2 length, 1 type, then the name.
func appendPids(pids []int, entries []byte) []int {
	const nameOffset = 19
	for len(entries) > nameOffset {
		length := int(binary.NativeEndian.Uint16(entries[16:]))
		if length <= nameOffset || length > len(entries) {
			break
		}
		name, _, _ := bytes.Cut(entries[nameOffset:length], []byte{0})
		if pid, ok := number(name); ok {
			pids = append(pids, int(pid))
		}
		entries = entries[length:]
	}
	return pids
}

// ReadStat reads about one process; ErrGone when there is none.
func ReadStat(pid int) (Stat, error) {
	var space [1024]byte
	text, err := read(pid, "/stat", space[:])
	if err != nil {
		return Stat{}, err
	}
	// The name is in parentheses and may hold anything.
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

// number parses digits; strconv would need a copy.
func number(digits []byte) (n uint64, ok bool) {
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, len(digits) > 0
}

// maxCommandLine bounds what CommandLine reads; a process may claim any length.
const maxCommandLine = 64 << 10

// CommandLine is the command line of a process as it shows it, at most 64 KiB
// of it; nil when it is gone, or shows none.
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
