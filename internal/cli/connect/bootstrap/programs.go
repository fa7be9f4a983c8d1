package bootstrap

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// Kind is a kind of machine, by its GOOS and GOARCH.
type Kind struct{ OS, Arch string }

// String returns OS-ARCH, as in the names of programs.
func (k Kind) String() string { return k.OS + "-" + k.Arch }

// systems and machines map the output of uname -s and uname -m.
var (
	systems = map[string]string{
		"Linux": "linux", "Darwin": "darwin", "FreeBSD": "freebsd", "NetBSD": "netbsd", "OpenBSD": "openbsd",
	}
	machines = map[string]string{
		"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64",
		"i386": "386", "i486": "386", "i586": "386", "i686": "386",
		"armv5tel": "arm", "armv6l": "arm", "armv7l": "arm", "armv8l": "arm",
		"riscv64": "riscv64", "ppc64le": "ppc64le", "s390x": "s390x", "loongarch64": "loong64",
	}
)

// KindOf returns the kind of a machine from the output of uname -sm.
func KindOf(machine string) (Kind, bool) {
	system, machine, _ := strings.Cut(machine, " ")
	kind := Kind{systems[system], machines[machine]}
	return kind, kind.OS != "" && kind.Arch != ""
}

// Program is a program that can be uploaded.
type Program struct {
	Kind Kind
	Path string
	self bool
}

// file returns the path to open. The running program remains readable after an upgrade.
func (p Program) file() string {
	if p.self && runtime.GOOS == "linux" {
		return "/proc/self/exe"
	}
	return p.Path
}

// programs maps kinds of machines to their programs.
type programs map[Kind]Program

// find returns the programs named exec-server-OS-ARCH from the first directory that has one for a
// kind of machine, and this program for its own kind.
func find(directories []string) (programs, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	own := Kind{runtime.GOOS, runtime.GOARCH}
	found := programs{own: {own, self, true}}
	for _, directory := range directories {
		for _, system := range systems {
			for _, arch := range machines {
				kind := Kind{system, arch}
				path := filepath.Join(directory, "exec-server-"+kind.String())
				if _, known := found[kind]; known {
					continue
				}
				if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
					found[kind] = Program{Kind: kind, Path: path}
				}
			}
		}
	}
	return found, nil
}

// of returns the program for a machine by the output of uname -sm.
func (p programs) of(machine string) (Program, bool) {
	kind, _ := KindOf(machine)
	program, ok := p[kind]
	return program, ok
}

// words returns SYSTEM/MACHINE=DIGEST,SIZE for each program and each name of its machine.
func (p programs) words() (string, error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var words []string
	var failed error
	for kind, program := range p {
		wg.Go(func() {
			digest, size, err := program.digest()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				return
			}
			for system, name := range systems {
				for machine, arch := range machines {
					if kind.OS == name && kind.Arch == arch {
						words = append(words, fmt.Sprintf("%s/%s=%s,%d", system, machine, digest, size))
					}
				}
			}
		})
	}
	wg.Wait()
	return strings.Join(words, " "), failed
}

// digest returns the SHA-256 of a program, in hex, and its size.
func (p Program) digest() (digest string, size int64, err error) {
	file, err := os.Open(p.file())
	if err != nil {
		return "", 0, fmt.Errorf("open the program for %s: %w", p.Kind, err)
	}
	defer file.Close()
	hash := sha256.New()
	if size, err = io.Copy(hash, file); err != nil {
		return "", 0, fmt.Errorf("read the program for %s: %w", p.Kind, err)
	}
	return hex.EncodeToString(hash.Sum(nil)), size, nil
}

// check compares the file with its name.
func (p Program) check() error {
	head, err := p.head()
	if err != nil {
		return &Error{Kind: Mistaken, Text: fmt.Sprintf("%s cannot be read: %s", p.Path, err)}
	}
	is, ok := kindOfProgram(head)
	switch {
	case !ok:
		return &Error{Kind: Mistaken, Text: p.Path + " is not a program for a known kind of machine"}
	case is != p.Kind:
		return &Error{Kind: Mistaken, Text: fmt.Sprintf("%s is a program for %s", p.Path, is)}
	}
	return nil
}

// static reports whether a program seems to need no dynamic linker.
func (p Program) static() bool {
	head, err := p.head()
	return err != nil || !hasInterpreter(head)
}

// head returns the beginning of the file, which has the headers.
func (p Program) head() ([]byte, error) {
	file, err := os.Open(p.file())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, 4<<10))
}

// This file reads the headers of programs itself, because the packages of the standard library
// would enlarge the program that is uploaded.

// elfHeader is the size of the header of a 64-bit program in the format ELF.
const elfHeader = 64

// byteOrder returns the byte order of an ELF program, or nil.
func byteOrder(head []byte) binary.ByteOrder {
	switch {
	case len(head) < elfHeader || string(head[:4]) != "\x7fELF":
		return nil
	case head[5] == 2:
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// kindOfProgram returns the kind of machine of a program from its headers.
func kindOfProgram(head []byte) (Kind, bool) {
	if order := byteOrder(head); order != nil {
		system := map[byte]string{0: "linux", 2: "netbsd", 3: "linux", 9: "freebsd", 12: "openbsd"}[head[7]]
		arch := map[uint16]string{
			3: "386", 21: "ppc64le", 22: "s390x", 40: "arm", 62: "amd64", 183: "arm64", 243: "riscv64", 258: "loong64",
		}[order.Uint16(head[18:])]
		return Kind{system, arch}, system != "" && arch != ""
	}
	if len(head) >= 8 && binary.LittleEndian.Uint32(head) == 0xfeedfacf { // Mach-O
		arch := map[uint32]string{0x1000007: "amd64", 0x100000c: "arm64"}[binary.LittleEndian.Uint32(head[4:])]
		return Kind{"darwin", arch}, arch != ""
	}
	return Kind{}, false
}

// hasInterpreter reports whether an ELF program names a dynamic linker.
func hasInterpreter(head []byte) bool {
	order := byteOrder(head)
	if order == nil {
		return false
	}
	at, size, count := order.Uint64(head[32:]), order.Uint16(head[54:]), order.Uint16(head[56:])
	if head[4] == 1 { // of 32 bits
		at, size, count = uint64(order.Uint32(head[28:])), order.Uint16(head[42:]), order.Uint16(head[44:])
	}
	for ; count > 0 && at < uint64(len(head)-4); count-- {
		const interpreter = 3
		if order.Uint32(head[at:]) == interpreter {
			return true
		}
		at += uint64(size)
	}
	return false
}
