package bootstrap

import "encoding/binary"

// The headers of programs are read here, because the packages of the standard library for them
// would be a part of what is sent to every machine.

// elfHeader is the size of the header of a 64-bit program in the format ELF.
const elfHeader = 64

// byteOrder returns the order of a program in the format ELF, or nil for another one.
func byteOrder(head []byte) binary.ByteOrder {
	switch {
	case len(head) < elfHeader || string(head[:4]) != "\x7fELF":
		return nil
	case head[5] == 2:
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// kindOfProgram returns for which kind of machine a program is, by its beginning.
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

// hasInterpreter reports whether a program in the format ELF names a dynamic linker.
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
