package process

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// maxPrefaults is the number of files that the kernel opens for one exec: a script, the
// interpreters of scripts, a program and its loader.
const maxPrefaults = 6

// prefaultBytes is how much of a file the kernel reads to identify its format.
const prefaultBytes = 4096

// Sizes of the header and of a program header in a 64-bit ELF file, and the type of the
// program header that names the loader. Importing debug/elf would add its initialization to
// the start of every sandbox helper.
const (
	elfHeaderBytes  = 64
	elfSegmentBytes = 56
	elfInterpreter  = 3
)

// prefault reads into memory what the kernel will read of a program and its interpreters at
// the exec. A file system that is slow or hangs delays only this start; in ForkExec it
// would block a processor of the runtime, and with it the whole program at the next garbage
// collection.
//
// The caller must call release after the start. Until then the open files keep others from
// taking a write lease, whose release the kernel would wait for in ForkExec.
//
// prefault ignores errors, because the kernel finds and reports them.
func prefault(path, dir string) (release func()) {
	var files []int
	for range maxPrefaults {
		fd, err := openRegular(absolute(path, dir))
		if err != nil {
			break
		}
		files = append(files, fd)
		head := make([]byte, prefaultBytes)
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

// openRegular opens a regular file for reading; opening a FIFO or a device can block or
// have side effects. It waits until a write lease is released.
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

// interpreter returns the interpreter of a script or the loader of an ELF program, or "".
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
			name := make([]byte, min(order.Uint64(segment[32:]), prefaultBytes))
			n, _ := sys.Pread(fd, name, int64(order.Uint64(segment[8:])))
			return string(bytes.TrimRight(name[:max(n, 0)], "\x00"))
		}
		at += size
	}
	return ""
}
