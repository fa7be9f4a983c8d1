package vfork

// System calls by their numbers.
const (
	sysSigprocmask = 14
	sysIoctl       = 16
	sysGetpid      = 39
	sysExecve      = 59
	sysWait4       = 61
	sysChdir       = 80
	sysGetppid     = 110
	sysSetsid      = 112
	sysPrctl       = 157
	sysDup3        = 292
	sysPrlimit     = 302
)

// What they take and return.
const (
	cloneVM           = 0x100
	cloneVfork        = 0x4000 // without it, a child for which there is no memory takes the program with it
	cloneClearSighand = 0x100000000
	cloneIntoCgroup   = 0x200000000

	esrch          = 3
	eintr          = 4
	einval         = 22
	maskBytes      = 8
	prSetPdeathsig = 1
	rlimitNofile   = 7
	sigSetMask     = 2
	sigchld        = 17
	tiocsctty      = 0x540e
)
