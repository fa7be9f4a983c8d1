// Package seccomp builds and installs the filter of system calls that confines programs
// in a sandbox. The filter is written instruction by instruction, so that people can read
// and test what it does.
package seccomp

import "slices"

// Instruction is one instruction of the classic BPF machine, in the kernel's layout.
type Instruction struct {
	Op     uint16
	Jt, Jf uint8
	K      uint32
}

// Results of the filter.
const (
	retKill   = 0x80000000     // the whole process
	retEPERM  = 0x00050000 | 1 // the errno in the lower half
	retENOSYS = 0x00050000 | 38
	retAllow  = 0x7fff0000
)

// Offsets in the filter's input (struct seccomp_data). Both architectures are
// little-endian, so the lower half of an argument comes first.
const (
	offNumber = 0
	offArch   = 4
	offArg0   = 16
	offArg1   = 24
	offArg2   = 32
	offArg3   = 40
	offArg4   = 48
	high      = 4 // from the lower half of an argument to the upper one
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

// Arguments that the filter compares.
const (
	afUnix    = 1
	afInet    = 2
	afInet6   = 10
	afNetlink = 16  // programs ask for addresses and routes with it
	kindMask  = 0xf // the second argument of socket also has flags
	stream    = 1
	solSocket = 1
	seqpacket = 5
	newUser   = 0x10000000 // CLONE_NEWUSER
	setID     = 0o6000     // S_ISUID | S_ISGID
	creates   = 0o20000100 // O_CREAT | __O_TMPFILE
	tiocsti   = 0x5412     // puts input into a terminal
	tioclinux = 0x541c     // the same with the selection of the console
	setLease  = 1024       // F_SETLEASE
	setDeleg  = 1040       // F_SETDELEG
)

// Network says which sockets a filter leaves to a program.
type Network byte

// The values of Network.
const (
	// NetworkMachine leaves unix, Internet and netlink sockets. Other families reach things
	// that nobody means by a network, such as the host of a virtual machine.
	NetworkMachine Network = iota
	// NetworkOwn is for a program in a network namespace of its own, which holds only the
	// loopback interface. The filter leaves Internet sockets and pairs of unix sockets. It
	// refuses other unix sockets, because those with a path are reached from every network
	// namespace.
	NetworkOwn
	// NetworkNone leaves only pairs of unix sockets.
	NetworkNone
)

// Filter returns the filter of this architecture. A call of another architecture, such as
// that of a 32-bit program, ends the process.
//
// Pairs of unix sockets come from socketpair, and are streams or sequences of packets.
// Datagrams are not allowed, because a program could send them to any name in the file
// system through a socket that is connected elsewhere. The pairs work like any others:
// send, which is sendto without an address, shutdown, names, and the options of the socket
// itself. Event loops wake themselves through such a pair.
//
// If files is true, the filter protects the mounts that confine files: it denies new user
// namespaces. In one, a program can leave all mounts at once for another root directory,
// and can rename and remove what is not a mount point in its own namespace, even .git.
// clone3, whose flags a filter cannot see, then does not exist; programs use clone
// instead. The filter also denies modes with which a file runs as its owner or group: any
// user of the machine could run a file that a confined program left outside, with the
// rights of the server. openat2, whose mode a filter cannot see, does not exist either;
// programs use openat.
func Filter(network Network, files bool) []Instruction { return host.filter(network, files) }

// Neighbours returns a second filter, for a program without namespaces of its own. It
// keeps the program from the limits of other processes, which can end them (RLIMIT_CPU),
// and from the memory, semaphores and queues that processes share by a number (System V),
// or by a name outside of the file system (POSIX queues).
func Neighbours() []Instruction { return host.neighbours() }

func (a architecture) neighbours() []Instruction {
	f := []Instruction{
		{Op: opLoad, K: offArch},
		{Op: opJeq, Jt: 1, K: a.audit},
		{Op: opRet, K: retKill},
		{Op: opLoad, K: offNumber},
	}
	for _, number := range a.shared {
		f = append(f, Instruction{Op: opJeq, Jf: 1, K: number}, Instruction{Op: opRet, K: retEPERM})
	}
	return append(f,
		Instruction{Op: opJeq, Jf: 2, K: a.prlimit},
		Instruction{Op: opLoad, K: offArg0},
		Instruction{Op: opJeq, Jf: 1, K: 0}, // the calling process
		Instruction{Op: opRet, K: retAllow},
		Instruction{Op: opRet, K: retEPERM})
}

// architecture holds what differs between architectures.
type architecture struct {
	audit      uint32 // AUDIT_ARCH_*
	foreign    uint32 // numbers from here on belong to another architecture; 0 if there are none
	always     []uint32
	processes  []uint32 // without the machine's network, besides always
	sockets    []uint32 // without any network, besides those
	sendto     uint32
	setsockopt uint32
	socket     uint32
	socketpair uint32
	ioSetup    uint32
	ioctl      uint32
	fcntl      uint32
	clone      uint32
	unshare    uint32
	clone3     uint32
	openat2    uint32
	prlimit    uint32
	shared     []uint32
	modes      []modeCall
}

// modeCall is a system call that gives a file a mode.
type modeCall struct {
	number uint32
	mode   uint32 // offset of the mode
	flags  uint32 // offset of the flags without which nothing is created; 0 if there are none
}

func (a architecture) filter(network Network, files bool) []Instruction {
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
	if network != NetworkMachine {
		denied = slices.Concat(denied, a.processes)
	}
	if network == NetworkNone {
		denied = slices.Concat(denied, a.sockets)
	}
	for _, number := range denied {
		f = append(f, Instruction{Op: opJeq, Jf: 1, K: number}, ret(retEPERM))
	}
	if network == NetworkNone {
		f = append(f,
			Instruction{Op: opJeq, Jf: 6, K: a.sendto},
			Instruction{Op: opLoad, K: offArg4}, // the address
			Instruction{Op: opJeq, Jf: 3, K: 0},
			Instruction{Op: opLoad, K: offArg4 + high},
			Instruction{Op: opJeq, Jf: 1, K: 0},
			ret(retAllow),
			ret(retEPERM),
			Instruction{Op: opJeq, Jf: 4, K: a.setsockopt},
			Instruction{Op: opLoad, K: offArg1}, // the level
			Instruction{Op: opJeq, Jf: 1, K: solSocket},
			ret(retAllow),
			ret(retEPERM))
	}
	pair := func(number uint32) []Instruction {
		return []Instruction{
			{Op: opJeq, Jf: 8, K: number},
			{Op: opLoad, K: offArg0},
			{Op: opJeq, Jf: 5, K: afUnix},
			{Op: opLoad, K: offArg1},
			{Op: opAnd, K: kindMask},
			{Op: opJeq, Jt: 1, K: stream},
			{Op: opJeq, Jf: 1, K: seqpacket},
			ret(retAllow),
			ret(retEPERM),
		}
	}
	family := func(number uint32, allowed ...uint32) []Instruction {
		check := []Instruction{{Op: opJeq, Jf: uint8(len(allowed) + 3), K: number}, {Op: opLoad, K: offArg0}}
		for i, family := range allowed {
			check = append(check, Instruction{Op: opJeq, Jt: uint8(len(allowed) - i), K: family})
		}
		return append(check, ret(retEPERM), ret(retAllow))
	}
	switch network {
	case NetworkMachine:
		for _, number := range []uint32{a.socket, a.socketpair} {
			f = append(f, family(number, afUnix, afInet, afInet6, afNetlink)...)
		}
	case NetworkOwn:
		f = append(f, slices.Concat(family(a.socket, afInet, afInet6), pair(a.socketpair))...)
	case NetworkNone:
		f = append(f, slices.Concat(pair(a.socket), pair(a.socketpair))...)
	}
	// A lease on a file that its owner may only read makes everybody who opens it wait or fail,
	// also the server, which reads what protects its files and its clients.
	f = append(f,
		Instruction{Op: opJeq, Jf: 5, K: a.fcntl},
		Instruction{Op: opLoad, K: offArg1},
		Instruction{Op: opJeq, Jt: 1, K: setLease},
		Instruction{Op: opJeq, Jf: 1, K: setDeleg},
		ret(retEPERM),
		ret(retAllow))
	// All programs of the machine share the room for asynchronous reads and writes, and
	// programs work without it.
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
