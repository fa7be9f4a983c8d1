package seccomp

import (
	"encoding/binary"
	"fmt"
	"testing"
)

// run is the machine of classic BPF, as far as a filter uses it.
func run(t *testing.T, program []Instruction, data []byte) uint32 {
	t.Helper()
	var a uint32
	for pc := 0; pc < len(program); pc++ {
		i := program[pc]
		jump := func(yes bool) {
			if yes {
				pc += int(i.Jt)
			} else {
				pc += int(i.Jf)
			}
		}
		switch i.Op {
		case opLoad:
			a = binary.LittleEndian.Uint32(data[i.K:])
		case opJeq:
			jump(a == i.K)
		case opJge:
			jump(a >= i.K)
		case opJset:
			jump(a&i.K != 0)
		case opAnd:
			a &= i.K
		case opRet:
			return i.K
		default:
			t.Fatalf("instruction %d is %+v", pc, i)
		}
	}
	t.Fatal("the program has no end")
	return 0
}

func TestFilter(t *testing.T) {
	const i386, anyArch, cloexec = 0x40000003, 0, 0x80000
	numbers := map[string]map[string]uint32{
		"amd64": {"read": 0, "execve": 59, "mount": 165, "socket": 41, "socketpair": 53, "connect": 42, "sendmsg": 46, "sendto": 44, "setsockopt": 54, "getsockopt": 55, "shutdown": 48, "getsockname": 51, "getpeername": 52, "recvfrom": 45, "ptrace": 101, "ioctl": 16, "keyctl": 250, "io_uring_setup": 425, "bpf": 321, "clone": 56, "unshare": 272, "clone3": 435, "io_setup": 206, "accept4": 288, "pidfd_getfd": 438, "openat": 257, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452, "mknodat": 259, "openat2": 437, "fcntl": 72},
		"arm64": {"read": 63, "execve": 221, "mount": 40, "socket": 198, "socketpair": 199, "connect": 203, "sendmsg": 211, "sendto": 206, "setsockopt": 208, "getsockopt": 209, "shutdown": 210, "getsockname": 204, "getpeername": 205, "recvfrom": 207, "ptrace": 117, "ioctl": 29, "keyctl": 219, "io_uring_setup": 425, "bpf": 280, "clone": 220, "unshare": 97, "clone3": 435, "io_setup": 0, "accept4": 242, "pidfd_getfd": 438, "openat": 56, "fchmod": 52, "fchmodat": 53, "fchmodat2": 452, "mknodat": 33, "openat2": 437, "fcntl": 25},
	}
	for name, arch := range map[string]architecture{"amd64": amd64, "arm64": arm64} {
		for _, tt := range []struct {
			call               string
			arg0, arg1         uint64
			audit              uint32
			machine, own, none uint32
		}{
			{"read", 0, 0, anyArch, retAllow, retAllow, retAllow},
			{"execve", 0, 0, anyArch, retAllow, retAllow, retAllow},
			{"mount", 0, 0, anyArch, retAllow, retAllow, retAllow},
			{"read", 0, 0, i386, retKill, retKill, retKill},
			{"socket", 1, 1, anyArch, retAllow, retEPERM, retAllow},
			{"socket", 1 | 1<<40, 1, anyArch, retAllow, retEPERM, retAllow}, // the kernel takes the lower half
			{"socket", 1, 1 | cloexec, anyArch, retAllow, retEPERM, retAllow},
			{"socket", 1, 5, anyArch, retAllow, retEPERM, retAllow},
			{"socket", 1, 2, anyArch, retAllow, retEPERM, retEPERM},
			{"socket", 1, 2 | cloexec, anyArch, retAllow, retEPERM, retEPERM},
			{"socket", 1, 3, anyArch, retAllow, retEPERM, retEPERM}, // the kernel makes it 2
			{"socket", 2, 0, anyArch, retAllow, retAllow, retEPERM},
			{"socket", 16, 0, anyArch, retAllow, retEPERM, retEPERM},
			{"socketpair", 1, 1, anyArch, retAllow, retAllow, retAllow},
			{"socketpair", 1, 2, anyArch, retAllow, retEPERM, retEPERM},
			{"socketpair", 30, 1, anyArch, retEPERM, retEPERM, retEPERM},
			{"socket", 10, 1, anyArch, retAllow, retAllow, retEPERM},
			{"socket", 16, 3, anyArch, retAllow, retEPERM, retEPERM},
			{"socket", 17, 3, anyArch, retEPERM, retEPERM, retEPERM}, // packets
			{"socket", 38, 5, anyArch, retEPERM, retEPERM, retEPERM}, // ciphers of the kernel
			{"socket", 40, 1, anyArch, retEPERM, retEPERM, retEPERM}, // the host of a virtual machine
			{"socket", 40 | 1<<40, 1, anyArch, retEPERM, retEPERM, retEPERM},
			{"io_setup", 1, 0, anyArch, retENOSYS, retENOSYS, retENOSYS},
			{"connect", 0, 0, anyArch, retAllow, retAllow, retEPERM},
			{"sendmsg", 0, 0, anyArch, retAllow, retAllow, retAllow},
			{"recvfrom", 0, 0, anyArch, retAllow, retAllow, retAllow},
			{"ptrace", 0, 0, anyArch, retAllow, retEPERM, retEPERM},
			{"pidfd_getfd", 0, 0, anyArch, retAllow, retEPERM, retEPERM},
			{"accept4", 0, 0, anyArch, retAllow, retAllow, retEPERM},
			{"keyctl", 0, 0, anyArch, retEPERM, retEPERM, retEPERM},
			{"bpf", 0, 0, anyArch, retEPERM, retEPERM, retEPERM},
			{"io_uring_setup", 0, 0, anyArch, retEPERM, retEPERM, retEPERM},
			{"fcntl", 0, 4, anyArch, retAllow, retAllow, retAllow},
			{"fcntl", 0, 38, anyArch, retAllow, retAllow, retAllow},
			{"fcntl", 0, setLease, anyArch, retEPERM, retEPERM, retEPERM},
			{"fcntl", 0, setLease | 1<<40, anyArch, retEPERM, retEPERM, retEPERM},
			{"fcntl", 0, setDeleg, anyArch, retEPERM, retEPERM, retEPERM},
			{"ioctl", 0, 0x5401, anyArch, retAllow, retAllow, retAllow},
			{"ioctl", 0, tiocsti, anyArch, retEPERM, retEPERM, retEPERM},
			{"ioctl", 0, tiocsti | 1<<40, anyArch, retEPERM, retEPERM, retEPERM},
			{"ioctl", 0, tioclinux, anyArch, retEPERM, retEPERM, retEPERM},
			{"ioctl", 0, tiocexcl, anyArch, retEPERM, retEPERM, retEPERM},
			{"ioctl", 0, tiocsetd, anyArch, retEPERM, retEPERM, retEPERM},
		} {
			data := make([]byte, 64)
			audit := tt.audit
			if audit == anyArch {
				audit = arch.audit
			}
			binary.LittleEndian.PutUint32(data[offNumber:], numbers[name][tt.call])
			binary.LittleEndian.PutUint32(data[offArch:], audit)
			binary.LittleEndian.PutUint64(data[offArg0:], tt.arg0)
			binary.LittleEndian.PutUint64(data[offArg1:], tt.arg1)
			what := fmt.Sprintf("%s of %s(%#x, %#x)", name, tt.call, tt.arg0, tt.arg1)
			for _, files := range []bool{false, true} {
				for network, want := range map[Network]uint32{NetworkMachine: tt.machine, NetworkOwn: tt.own, NetworkNone: tt.none} {
					if got := run(t, arch.filter(network, files), data); got != want {
						t.Errorf("%s, network %d: %#x, want %#x", what, network, got, want)
					}
				}
			}
		}
		for _, tt := range []struct {
			call       string
			level      uint64
			address    uint64
			restricted uint32
		}{
			{"sendto", 0, 0, retAllow}, // as send does
			{"sendto", 0, 0x7ffc00001000, retEPERM},
			{"sendto", 0, 0x1000, retEPERM},
			{"sendto", 0, 1 << 32, retEPERM},
			{"setsockopt", solSocket, 0, retAllow},
			{"setsockopt", 6, 0, retEPERM}, // of TCP
			{"getsockopt", solSocket, 0, retAllow},
			{"shutdown", 2, 0, retAllow},
			{"getsockname", 0, 0, retAllow},
			{"getpeername", 0, 0, retAllow},
		} {
			data := make([]byte, 64)
			binary.LittleEndian.PutUint32(data[offNumber:], numbers[name][tt.call])
			binary.LittleEndian.PutUint32(data[offArch:], arch.audit)
			binary.LittleEndian.PutUint64(data[offArg1:], tt.level)
			binary.LittleEndian.PutUint64(data[offArg4:], tt.address)
			for _, network := range []Network{NetworkMachine, NetworkOwn} {
				if got := run(t, arch.filter(network, true), data); got != retAllow {
					t.Errorf("%s of %s, network %d: %#x", name, tt.call, network, got)
				}
			}
			if got := run(t, arch.filter(NetworkNone, true), data); got != tt.restricted {
				t.Errorf("%s of %s(%#x, address %#x), no network: %#x, want %#x",
					name, tt.call, tt.level, tt.address, got, tt.restricted)
			}
		}
		for _, tt := range []struct {
			call       string
			flags      uint64
			alone, set uint32
		}{
			{"clone", 17, retAllow, retAllow},       // as fork does
			{"clone", 0x3d0f00, retAllow, retAllow}, // a thread
			{"clone", newUser | 17, retAllow, retEPERM},
			{"unshare", 0x20000, retAllow, retAllow}, // of mounts, which the kernel refuses
			{"unshare", newUser, retAllow, retEPERM},
			{"unshare", 0x1e000000, retAllow, retEPERM}, // of all
			{"clone3", 0, retAllow, retENOSYS},          // has its flags in memory
			{"clone3", newUser << 1, retAllow, retENOSYS},
		} {
			data := make([]byte, 64)
			binary.LittleEndian.PutUint32(data[offNumber:], numbers[name][tt.call])
			binary.LittleEndian.PutUint32(data[offArch:], arch.audit)
			binary.LittleEndian.PutUint64(data[offArg0:], tt.flags)
			for _, network := range []Network{NetworkMachine, NetworkOwn, NetworkNone} {
				if got := run(t, arch.filter(network, false), data); got != tt.alone {
					t.Errorf("%s of %s(%#x), files: %#x, want %#x", name, tt.call, tt.flags, got, tt.alone)
				}
				if got := run(t, arch.filter(network, true), data); got != tt.set {
					t.Errorf("%s of %s(%#x), no files: %#x, want %#x", name, tt.call, tt.flags, got, tt.set)
				}
			}
		}
		for _, tt := range []struct {
			call string
			args [4]uint64
			set  uint32
		}{
			{"openat", [4]uint64{0, 0, 0, 0o4755}, retAllow}, // makes nothing
			{"openat", [4]uint64{0, 0, 0o100, 0o755}, retAllow},
			{"openat", [4]uint64{0, 0, 0o100, 0o4755}, retEPERM},
			{"openat", [4]uint64{0, 0, 0o20200002, 0o2755}, retEPERM},
			{"openat2", [4]uint64{}, retENOSYS},
			{"fchmod", [4]uint64{3, 0o1777}, retAllow},
			{"fchmod", [4]uint64{3, 0o2755}, retEPERM},
			{"fchmodat", [4]uint64{0, 0, 0o755}, retAllow},
			{"fchmodat", [4]uint64{0, 0, 0o4000}, retEPERM},
			{"fchmodat2", [4]uint64{0, 0, 0o4000}, retEPERM},
			{"mknodat", [4]uint64{0, 0, 0o104755}, retEPERM},
			{"mknodat", [4]uint64{0, 0, 0o10644}, retAllow},
		} {
			data := make([]byte, 64)
			binary.LittleEndian.PutUint32(data[offNumber:], numbers[name][tt.call])
			binary.LittleEndian.PutUint32(data[offArch:], arch.audit)
			for i, arg := range tt.args {
				binary.LittleEndian.PutUint64(data[offArg0+8*i:], arg)
			}
			for _, network := range []Network{NetworkMachine, NetworkOwn, NetworkNone} {
				if got := run(t, arch.filter(network, false), data); got != retAllow {
					t.Errorf("%s of %s%#o, files: %#x", name, tt.call, tt.args, got)
				}
				if got := run(t, arch.filter(network, true), data); got != tt.set {
					t.Errorf("%s of %s%#o, no files: %#x, want %#x", name, tt.call, tt.args, got, tt.set)
				}
			}
		}
		if arch.foreign == 0 {
			continue
		}
		data := make([]byte, 64)
		binary.LittleEndian.PutUint32(data[offArch:], arch.audit)
		for _, number := range []uint32{arch.foreign, arch.foreign | 41, 1<<32 - 1} {
			binary.LittleEndian.PutUint32(data[offNumber:], number)
			if got := run(t, arch.filter(NetworkMachine, false), data); got != retKill {
				t.Errorf("x32 call %#x: %#x", number, got)
			}
		}
	}
}

func TestLimitsOfOthers(t *testing.T) {
	for name, arch := range map[string]architecture{"amd64": amd64, "arm64": arm64} {
		for _, tt := range []struct{ process, limits, want uint64 }{
			{0, 0x7ffc00001000, retAllow},
			{1 << 40, 0x7ffc00001000, retAllow}, // the kernel takes the lower half
			{1, 0, retAllow},                    // reads them
			{1, 0x7ffc00001000, retEPERM},
			{7, 0x1000, retEPERM},
			{7, 1 << 32, retEPERM},
		} {
			data := make([]byte, 64)
			binary.LittleEndian.PutUint32(data[offNumber:], arch.prlimit)
			binary.LittleEndian.PutUint32(data[offArch:], arch.audit)
			binary.LittleEndian.PutUint64(data[offArg0:], tt.process)
			binary.LittleEndian.PutUint64(data[offArg2:], tt.limits)
			for _, network := range []Network{NetworkMachine, NetworkOwn, NetworkNone} {
				if got := run(t, arch.filter(network, true), data); uint64(got) != tt.want {
					t.Errorf("%s prlimit(%#x, limits %#x), network %d: %#x, want %#x", name, tt.process, tt.limits, network, got, tt.want)
				}
			}
		}
	}
}

func TestFilterShared(t *testing.T) {
	for name, arch := range map[string]architecture{"amd64": amd64, "arm64": arm64} {
		for _, tt := range []struct {
			call uint32
			arg0 uint64
			want uint32
		}{
			{arch.prlimit, 0, retAllow},
			{arch.prlimit, 1 << 40, retAllow}, // the kernel takes the lower half
			{arch.prlimit, 1, retEPERM},
			{arch.shared[0], 0, retEPERM},
			{arch.shared[10], 0, retEPERM},
			{arch.shared[12], 0, retEPERM},
			{arch.ioctl, 1, retAllow},
		} {
			data := make([]byte, 64)
			binary.LittleEndian.PutUint32(data[offNumber:], tt.call)
			binary.LittleEndian.PutUint32(data[offArch:], arch.audit)
			binary.LittleEndian.PutUint64(data[offArg0:], tt.arg0)
			if got := run(t, arch.filterShared(), data); got != tt.want {
				t.Errorf("%s %d(%#x): %#x, want %#x", name, tt.call, tt.arg0, got, tt.want)
			}
		}
	}
}
