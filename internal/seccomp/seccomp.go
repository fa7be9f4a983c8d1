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
	tiocexcl  = 0x540c     // keeps other programs from opening a terminal
	tiocsetd  = 0x5423     // changes what a terminal does with input and output, even to nothing
	setLease  = 1024       // F_SETLEASE
	setDeleg  = 1040       // F_SETDELEG
)

// Network selects the sockets that a filter allows.
type Network byte

// The values of Network.
const (
	// NetworkMachine allows unix, Internet and netlink sockets. Other families reach more than
	// the network, such as the host of a virtual machine.
	NetworkMachine Network = iota
	// NetworkOwn is for a program in its own network namespace, which has only the loopback
	// interface. The filter allows Internet sockets and pairs of unix sockets. It denies other
	// unix sockets, because those with a path can be reached from every network namespace.
	NetworkOwn
	// NetworkNone allows only pairs of unix sockets.
	NetworkNone
)

// Filter returns the filter of this architecture. A call of another architecture, such as
// that of a 32-bit program, ends the process.
//
// Pairs of unix sockets come from socketpair, and are of type stream or seqpacket. Datagrams
// are not allowed, because a program could send them to any path through such a socket. The
// pairs otherwise work as usual: send (sendto without an address), shutdown, getpeername, and
// options of the socket level. Event loops use such a pair to wake themselves.
//
// If files is true, the filter protects the mounts that confine files: it denies new user
// namespaces. In one, a program can leave all mounts at once for another root directory,
// and can rename and remove files that are not mount points in its own namespace, even .git.
// clone3, whose flags a filter cannot see, then fails with ENOSYS; programs fall back to
// clone. The filter also denies set-user-ID and set-group-ID modes: any user of the machine
// could run such a file, which a confined program left outside, as the server's user. openat2,
// whose mode a filter cannot see, also fails with ENOSYS; programs fall back to openat.
func Filter(network Network, files bool) []Instruction { return host.filter(network, files) }

// FilterShared returns a second filter, for a program that shares its namespaces with other
// processes. It denies changing the limits of other processes, which can end them
// (RLIMIT_CPU), and System V and POSIX interprocess communication.
func FilterShared() []Instruction { return host.filterShared() }

func (a architecture) filterShared() []Instruction {
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
	processes  []uint32 // without the machine's network, in addition to always
	sockets    []uint32 // without any network, in addition to those
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
	// A lease on a file makes every program that opens it wait or fail, including the server,
	// which reads its own configuration and secrets.
	f = append(f,
		Instruction{Op: opJeq, Jf: 5, K: a.fcntl},
		Instruction{Op: opLoad, K: offArg1},
		Instruction{Op: opJeq, Jt: 1, K: setLease},
		Instruction{Op: opJeq, Jf: 1, K: setDeleg},
		ret(retEPERM),
		ret(retAllow))
	// All programs of the machine share the limit of asynchronous I/O requests (aio-max-nr),
	// and programs work without it.
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
	// The launcher is process 1 of the sandbox, and of the same user. Limits could end it. A limit
	// set for one of its threads, whose ids a filter cannot know, applies to all.
	f = append(f,
		Instruction{Op: opJeq, Jf: 8, K: a.prlimit},
		Instruction{Op: opLoad, K: offArg0},
		Instruction{Op: opJeq, Jt: 4, K: 0}, // the calling process
		Instruction{Op: opLoad, K: offArg2}, // the new limits
		Instruction{Op: opJeq, Jf: 3, K: 0},
		Instruction{Op: opLoad, K: offArg2 + high},
		Instruction{Op: opJeq, Jf: 1, K: 0},
		ret(retAllow),
		ret(retEPERM))
	// Changes to a terminal outlive the command.
	return append(f,
		Instruction{Op: opJeq, Jf: 6, K: a.ioctl},
		Instruction{Op: opLoad, K: offArg1},
		Instruction{Op: opJeq, Jt: 3, K: tiocsti},
		Instruction{Op: opJeq, Jt: 2, K: tioclinux},
		Instruction{Op: opJeq, Jt: 1, K: tiocexcl},
		Instruction{Op: opJeq, Jf: 1, K: tiocsetd},
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
