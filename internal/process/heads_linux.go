package process

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// maxHeads is how many files the kernel opens to execute one: a script, the scripts
// that interpret it, the program that interprets those, and its loader.
const maxHeads = 6

// headBytes is how much of a file the kernel reads to find out what it is.
const headBytes = 4096

// readHeads reads what the kernel is going to read of a program and of its interpreters
// when it executes the program. Here a file system that is slow, or does not answer, holds
// up this start alone; in ForkExec it would hold up a processor of the runtime, and with it
// the whole program at its next garbage collection. The files are in memory afterwards.
//
// The caller calls closeHeads after the start. While a file is open here, nobody gets a
// lease for writing on it, for whose end the kernel would wait in ForkExec.
//
// readHeads ignores errors, because the kernel finds and reports them.
func readHeads(path, dir string) (closeHeads func()) {
	var files []int
	for range maxHeads {
		fd, err := openRegular(absolute(path, dir))
		if err != nil {
			break
		}
		files = append(files, fd)
		head := make([]byte, headBytes)
		n, _ := sys.Pread(fd, head, 0)
		if path = interpreter(fd, head[:max(n, 0)]); path == "" {
			break
		}
	}
	return func() {
		for _, fd := range files {
			_ = sys.Close(fd)
		}
	}
}

// openRegular opens a file for reading if it is regular: to open a FIFO or a device can
// block, or change it. It waits for the end of a lease.
func openRegular(path string) (fd int, err error) {
	found, err := sys.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer sys.Close(found)
	var stat unix.Stat_t
	if err := sys.Fstat(found, &stat); err != nil {
		return -1, err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, unix.EINVAL
	}
	return sys.Open("/proc/self/fd/"+strconv.Itoa(found), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// interpreter returns the interpreter of a script or the loader of an ELF program,
// or "".
func interpreter(fd int, head []byte) string {
	if line, ok := bytes.CutPrefix(head, []byte("#!")); ok {
		line, _, _ = bytes.Cut(line, []byte("\n"))
		words := strings.FieldsFunc(string(line), func(r rune) bool { return r == ' ' || r == '\t' })
		if len(words) == 0 {
			return ""
		}
		return words[0]
	}
	if len(head) < elfHeaderBytes || !bytes.HasPrefix(head, []byte("\x7fELF")) {
		return ""
	}
	order := binary.NativeEndian
	at, size := order.Uint64(head[32:]), uint64(order.Uint16(head[54:]))
	for range order.Uint16(head[56:]) {
		if at > uint64(len(head)-elfSegmentBytes) {
			return ""
		}
		segment := head[at:]
		if order.Uint32(segment) == elfInterpreter {
			name := make([]byte, min(order.Uint64(segment[32:]), headBytes))
			n, _ := sys.Pread(fd, name, int64(order.Uint64(segment[8:])))
			return string(bytes.TrimRight(name[:max(n, 0)], "\x00"))
		}
		at += size
	}
	return ""
}

// The sizes of the header of a 64-bit ELF file and of the description of a segment, and
// the kind of the segment that names the loader. Package debug/elf would add its
// initialization to the start of every helper in a sandbox.
const (
	elfHeaderBytes  = 64
	elfSegmentBytes = 56
	elfInterpreter  = 3
)
