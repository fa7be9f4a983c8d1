package procfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"strconv"
	"strings"

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

// Ended reports whether the process has ended, whether or not its parent has reaped it. A
// process whose first thread has ended while others run looks like a zombie, too.
func (s Stat) Ended() bool { return (s.State == 'Z' || s.State == 'X') && s.Threads <= 1 }

// ErrGone says that the process does not exist any more.
var ErrGone = errors.New("the process is gone")

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

// ReadStat reads the Stat of a process. It returns ErrGone if there is none.
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

// maxCommandLine bounds what CommandLine reads, because a process may show any length.
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
