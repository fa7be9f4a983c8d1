package seccomp

import "runtime"

// Supported reports whether there is a filter for this architecture.
const Supported = runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64"

// host is the architecture of this program.
var host = map[string]architecture{"amd64": amd64, "arm64": arm64}[runtime.GOARCH]

// always lists io_uring_setup, io_uring_enter, io_uring_register, add_key, request_key,
// keyctl, bpf, perf_event_open, userfaultfd, in this order on both architectures.
// processes lists ptrace, process_vm_readv, process_vm_writev, pidfd_getfd, which would
// gain the sockets of other processes. sockets lists connect, accept, accept4, bind,
// listen, sendmmsg, recvmmsg. shared lists shmget, shmat, shmctl, semget, semop, semctl,
// semtimedop, msgget, msgsnd, msgrcv, msgctl.
var (
	amd64 = architecture{
		audit:     0xc000003e,
		foreign:   0x40000000, // x32
		always:    []uint32{425, 426, 427, 248, 249, 250, 321, 298, 323},
		processes: []uint32{101, 310, 311, 438},
		sockets:   []uint32{42, 43, 288, 49, 50, 307, 299},
		sendto:    44, setsockopt: 54,
		socket: 41, socketpair: 53, ioSetup: 206, ioctl: 16, fcntl: 72, clone: 56, unshare: 272, clone3: 435,
		openat2: 437, prlimit: 302, shared: []uint32{29, 30, 31, 64, 65, 66, 220, 68, 69, 70, 71, 240, 241},
		modes: []modeCall{ // openat, open, fchmodat2, fchmodat, fchmod, chmod, creat, mknodat, mknod
			{257, offArg3, offArg2},
			{2, offArg2, offArg1},
			{452, offArg2, 0},
			{268, offArg2, 0},
			{91, offArg1, 0},
			{90, offArg1, 0},
			{85, offArg1, 0},
			{259, offArg2, 0},
			{133, offArg1, 0},
		},
	}
	arm64 = architecture{
		audit:     0xc00000b7,
		always:    []uint32{425, 426, 427, 217, 218, 219, 280, 241, 282},
		processes: []uint32{117, 270, 271, 438},
		sockets:   []uint32{203, 202, 242, 200, 201, 269, 243},
		sendto:    206, setsockopt: 208,
		socket: 198, socketpair: 199, ioSetup: 0, ioctl: 29, fcntl: 25, clone: 220, unshare: 97, clone3: 435,
		openat2: 437, prlimit: 261, shared: []uint32{194, 196, 195, 190, 193, 191, 192, 186, 189, 188, 187, 180, 181},
		modes: []modeCall{ // openat, fchmodat2, fchmodat, fchmod, mknodat
			{56, offArg3, offArg2}, {452, offArg2, 0}, {53, offArg2, 0}, {52, offArg1, 0}, {33, offArg2, 0},
		},
	}
)
