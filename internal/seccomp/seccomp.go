// Package seccomp builds and installs the filter of system calls that confines
// programs in a sandbox. It is written by hand, instruction by instruction, so
// that what it does can be read and tested.
package seccomp

// Instruction is one of the classic BPF machine, laid out as the kernel wants it.
type Instruction struct {
	Op     uint16
	Jt, Jf uint8
	K      uint32
}

// What the filter returns.
const (
	retKill  = 0x80000000     // the whole process
	retEPERM = 0x00050000 | 1 // the errno in the lower half
	retAllow = 0x7fff0000
)

// Offsets in what the filter looks at (struct seccomp_data). Both architectures
// are little-endian, so that the lower half of an argument comes first.
const (
	offNumber = 0
	offArch   = 4
	offArg0   = 16
	offArg1   = 24
)

// Opcodes.
const (
	opLoad = 0x20 // BPF_LD | BPF_W | BPF_ABS
	opJeq  = 0x15 // BPF_JMP | BPF_JEQ | BPF_K
	opJge  = 0x35 // BPF_JMP | BPF_JGE | BPF_K
	opAnd  = 0x54 // BPF_ALU | BPF_AND | BPF_K
	opRet  = 0x06 // BPF_RET | BPF_K
)

// Arguments that matter.
const (
	afUnix    = 1
	stream    = 1 // SOCK_STREAM
	seqpacket = 5 // SOCK_SEQPACKET
	sockTypes = 0xf
	tiocsti   = 0x5412 // puts input into a terminal
	tioclinux = 0x541c // the same by the selection of the console
)

// Filter is the filter of this architecture. Calls of any other, as of 32-bit
// programs, end the process. With restricted, nothing but socketpair and what
// it makes is left of sockets. Datagrams are not: sendmsg, which the filter
// cannot look into, takes them to a socket of any name.
func Filter(restricted bool) []Instruction { return native.filter(restricted) }

// architecture is what differs between architectures.
type architecture struct {
	audit      uint32 // AUDIT_ARCH_*
	foreign    uint32 // numbers from here on belong to another one; 0: there are none
	always     []uint32
	restricted []uint32 // besides always
	socket     uint32
	socketpair uint32
	ioctl      uint32
}

func (a architecture) filter(restricted bool) []Instruction {
	ret := func(value uint32) Instruction { return Instruction{Op: opRet, K: value} }
	f := []Instruction{
		{Op: opLoad, K: offArch},
		{Op: opJeq, Jt: 1, K: a.audit},
		ret(retKill),
		{Op: opLoad, K: offNumber},
	}
	if a.foreign != 0 {
		f = append(f, Instruction{Op: opJge, Jf: 1, K: a.foreign}, ret(retKill))
	}
	denied := a.always
	if restricted {
		denied = append(append([]uint32(nil), denied...), a.restricted...)
	}
	for _, number := range denied {
		f = append(f, Instruction{Op: opJeq, Jf: 1, K: number}, ret(retEPERM))
	}
	if restricted {
		for _, number := range []uint32{a.socket, a.socketpair} {
			f = append(f,
				Instruction{Op: opJeq, Jf: 8, K: number},
				Instruction{Op: opLoad, K: offArg0},
				Instruction{Op: opJeq, Jf: 5, K: afUnix},
				Instruction{Op: opLoad, K: offArg1},
				Instruction{Op: opAnd, K: sockTypes},
				Instruction{Op: opJeq, Jt: 1, K: stream},
				Instruction{Op: opJeq, Jf: 1, K: seqpacket},
				ret(retAllow),
				ret(retEPERM))
		}
	}
	return append(f,
		Instruction{Op: opJeq, Jf: 4, K: a.ioctl},
		Instruction{Op: opLoad, K: offArg1},
		Instruction{Op: opJeq, Jt: 1, K: tiocsti},
		Instruction{Op: opJeq, Jf: 1, K: tioclinux},
		ret(retEPERM),
		ret(retAllow))
}
