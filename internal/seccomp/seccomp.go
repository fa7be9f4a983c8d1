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
	retKill   = 0x80000000     // the whole process
	retEPERM  = 0x00050000 | 1 // the errno in the lower half
	retENOSYS = 0x00050000 | 38
	retAllow  = 0x7fff0000
)

// Offsets in what the filter looks at (struct seccomp_data). Both architectures
// are little-endian, so that the lower half of an argument comes first.
const (
	offNumber = 0
	offArch   = 4
	offArg0   = 16
	offArg1   = 24
	offArg2   = 32
	offArg3   = 40
)

// Opcodes.
const (
	opLoad = 0x20 // BPF_LD | BPF_W | BPF_ABS
	opJeq  = 0x15 // BPF_JMP | BPF_JEQ | BPF_K
	opJge  = 0x35 // BPF_JMP | BPF_JGE | BPF_K
	opJset = 0x45 // BPF_JMP | BPF_JSET | BPF_K
	opAnd  = 0x54 // BPF_ALU | BPF_AND | BPF_K
	opRet  = 0x06 // BPF_RET | BPF_K
)

// Arguments that matter.
const (
	afUnix    = 1
	afInet    = 2
	afInet6   = 10
	afNetlink = 16  // by which programs ask for addresses and routes
	kindMask  = 0xf // of the second argument of socket, which has flags besides
	stream    = 1
	seqpacket = 5
	newUser   = 0x10000000 // CLONE_NEWUSER
	setID     = 0o6000     // S_ISUID | S_ISGID
	creates   = 0o20000100 // O_CREAT | __O_TMPFILE
	tiocsti   = 0x5412     // puts input into a terminal
	tioclinux = 0x541c     // the same by the selection of the console
)

// Filter is the filter of this architecture. Calls of any other, as of 32-bit
// programs, end the process.
//
// With network, which restricts the network, nothing but socketpair and what it
// makes is left of sockets. Nor are there datagrams: they can be sent to whatever
// has a name in the file system, through a socket that is connected elsewhere.
// Without, there are unix, Internet and netlink sockets: others reach what a
// network does not mean, such as the host of a virtual machine.
//
// With files, which protects the mounts that confine files, there are no new
// namespaces of users. In one, a program can leave all mounts at once for another
// root directory, and what is not a mount's place in its own namespace can be
// renamed and removed, even .git. clone3, whose flags a filter cannot see, does
// not exist then; programs use clone instead. Nor can files be made that run as
// their owner or group: anybody on the machine could run what is confined to leave
// them, outside, with the rights of the server. openat2, whose mode a filter
// cannot see, does not exist either; programs use openat.
func Filter(network, files bool) []Instruction { return native.filter(network, files) }

// Neighbours is a filter, besides the other, for what is not in namespaces of its
// own. It keeps a program from the limits of other processes, which can end them
// (RLIMIT_CPU), and from the memory, semaphores and queues that they share by a
// number (System V).
func Neighbours() []Instruction { return native.neighbours() }

func (a architecture) neighbours() []Instruction {
	f := []Instruction{
		{Op: opLoad, K: offArch},
		{Op: opJeq, Jt: 1, K: a.audit},
		{Op: opRet, K: retKill},
		{Op: opLoad, K: offNumber},
	}
	for _, number := range a.sysV {
		f = append(f, Instruction{Op: opJeq, Jf: 1, K: number}, Instruction{Op: opRet, K: retEPERM})
	}
	return append(f,
		Instruction{Op: opJeq, Jf: 2, K: a.prlimit},
		Instruction{Op: opLoad, K: offArg0},
		Instruction{Op: opJeq, Jf: 1, K: 0}, // one's own
		Instruction{Op: opRet, K: retAllow},
		Instruction{Op: opRet, K: retEPERM})
}

// architecture is what differs between architectures.
type architecture struct {
	audit      uint32 // AUDIT_ARCH_*
	foreign    uint32 // numbers from here on belong to another one; 0: there are none
	always     []uint32
	restricted []uint32 // besides always
	socket     uint32
	socketpair uint32
	ioSetup    uint32
	ioctl      uint32
	clone      uint32
	unshare    uint32
	clone3     uint32
	openat2    uint32
	prlimit    uint32
	sysV       []uint32
	modes      []modeCall
}

// modeCall is a call that gives a file a mode.
type modeCall struct {
	number uint32
	mode   uint32 // offset of the mode
	flags  uint32 // of the flags without which nothing is made; 0: it has none
}

func (a architecture) filter(network, files bool) []Instruction {
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
	if network {
		denied = append(append([]uint32(nil), denied...), a.restricted...)
	}
	for _, number := range denied {
		f = append(f, Instruction{Op: opJeq, Jf: 1, K: number}, ret(retEPERM))
	}
	if network {
		for _, number := range []uint32{a.socket, a.socketpair} {
			f = append(f,
				Instruction{Op: opJeq, Jf: 8, K: number},
				Instruction{Op: opLoad, K: offArg0},
				Instruction{Op: opJeq, Jf: 5, K: afUnix},
				Instruction{Op: opLoad, K: offArg1},
				Instruction{Op: opAnd, K: kindMask},
				Instruction{Op: opJeq, Jt: 1, K: stream},
				Instruction{Op: opJeq, Jf: 1, K: seqpacket},
				ret(retAllow),
				ret(retEPERM))
		}
	}
	if !network {
		for _, number := range []uint32{a.socket, a.socketpair} {
			f = append(f,
				Instruction{Op: opJeq, Jf: 7, K: number},
				Instruction{Op: opLoad, K: offArg0},
				Instruction{Op: opJeq, Jt: 4, K: afUnix},
				Instruction{Op: opJeq, Jt: 3, K: afInet},
				Instruction{Op: opJeq, Jt: 2, K: afInet6},
				Instruction{Op: opJeq, Jt: 1, K: afNetlink},
				ret(retEPERM),
				ret(retAllow))
		}
	}
	// All programs of the machine share the room for asynchronous reads and writes,
	// and can do without.
	f = append(f, Instruction{Op: opJeq, Jf: 1, K: a.ioSetup}, ret(retENOSYS))
	if files {
		f = append(f, Instruction{Op: opJeq, Jf: 1, K: a.clone3}, ret(retENOSYS))
		for _, number := range []uint32{a.clone, a.unshare} {
			f = append(f,
				Instruction{Op: opJeq, Jf: 4, K: number},
				Instruction{Op: opLoad, K: offArg0},
				Instruction{Op: opJset, Jf: 1, K: newUser},
				ret(retEPERM),
				ret(retAllow))
		}
		f = append(f, a.setIDs()...)
	}
	return append(f,
		Instruction{Op: opJeq, Jf: 4, K: a.ioctl},
		Instruction{Op: opLoad, K: offArg1},
		Instruction{Op: opJeq, Jt: 1, K: tiocsti},
		Instruction{Op: opJeq, Jf: 1, K: tioclinux},
		ret(retEPERM),
		ret(retAllow))
}

// setIDs refuses modes with which a program runs as another user or group.
func (a architecture) setIDs() []Instruction {
	f := []Instruction{
		{Op: opJeq, Jf: 1, K: a.openat2},
		{Op: opRet, K: retENOSYS},
	}
	for _, call := range a.modes {
		check := []Instruction{
			{Op: opLoad, K: call.mode},
			{Op: opJset, Jf: 1, K: setID},
			{Op: opRet, K: retEPERM},
			{Op: opRet, K: retAllow},
		}
		if call.flags != 0 {
			check = append([]Instruction{
				{Op: opLoad, K: call.flags},
				{Op: opJset, Jt: 1, K: creates},
				{Op: opRet, K: retAllow},
			}, check...)
		}
		f = append(f, Instruction{Op: opJeq, Jf: uint8(len(check)), K: call.number})
		f = append(f, check...)
	}
	return f
}
