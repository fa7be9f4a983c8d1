// Package vfork starts programs as vfork does: the child borrows the program's
// memory, and the parent's thread waits until it executes something. Package
// syscall does so, too, but keeps the thread's place among GOMAXPROCS: one
// goroutine less runs while a program is loaded, which takes longer than the rest
// of a start, and forever on a file system that does not answer.
//
// The package imports nothing, so that it is initialized before package syscall,
// which raises the limit of open files.
package vfork

import "unsafe"

// Attr is what a child is besides the program it executes. It becomes the leader
// of a session.
type Attr struct {
	Dir string
	Env []string
	// Files become the first three descriptors; each is above 2. The other ones
	// that the child shall not have must be such that execution closes them.
	Files [3]uintptr
	// Ctty says that descriptor 0 is a terminal, which becomes that of the session.
	Ctty bool
	// Pdeathsig is the signal that the child gets when the calling thread ends.
	Pdeathsig int
	// Cgroup is the descriptor of the control group that it starts in; -1: the
	// program's.
	Cgroup int
	Limits []Limit
}

// Limit sets a resource limit.
type Limit struct {
	Resource int
	Rlimit
}

// Rlimit is a resource limit as the kernel has it.
type Rlimit struct{ Cur, Max uint64 }

// nofile is the limit of open files that the program was started with.
var nofile = getrlimit(rlimitNofile)

// ForkExec starts a program, and waits until it is executed. refused says that the
// kernel has refused to make the child with an errno; otherwise an errno that is
// not 0 is the child's, of which nothing is left; ESRCH says that its parent is
// gone. The calling goroutine must be locked to its thread.
func ForkExec(path string, argv []string, attr *Attr) (pid int, errno uintptr, refused bool) {
	c, ok := newChild(path, argv, attr)
	if !ok {
		return 0, einval, false
	}
	pid = c.start()
	if pid < 0 {
		return 0, uintptr(-pid), true
	}
	for i := range c.calls {
		if c.calls[i].failed == 0 {
			continue
		}
		for int(call(sysWait4, uintptr(pid), 0, 0, 0)) == -eintr {
		}
		if c.calls[i].errno == 0 {
			return 0, esrch, false
		}
		return 0, c.calls[i].errno, false
	}
	return pid, 0, false
}

// child is what a child needs in memory. It is in the heap.
type child struct {
	args      cloneArgs
	calls     []systemCall
	mask      uint64 // of signals, as the program's thread has them
	path, dir *byte
	argv, env []*byte
	limits    []Limit
}

// cloneArgs is struct clone_args of the kernel.
type cloneArgs struct {
	flags      uint64
	_          [3]uint64
	exitSignal uint64
	_          [5]uint64
	cgroup     uint64
}

// systemCall is one that the child makes. The assembly knows the members.
type systemCall struct {
	number uintptr
	args   [6]uintptr
	want   uintptr // what it must return; 0: anything but an error
	failed uintptr // 1 when it has
	errno  uintptr
}

func newChild(path string, argv []string, attr *Attr) (c *child, ok bool) {
	c = &child{limits: attr.Limits}
	c.args = cloneArgs{flags: cloneVM | cloneVfork | cloneClearSighand, exitSignal: sigchld}
	if attr.Cgroup >= 0 {
		c.args.flags |= cloneIntoCgroup
		c.args.cgroup = uint64(attr.Cgroup)
	}
	// Package syscall raises the limit to one less than may be.
	if getrlimit(rlimitNofile) == (Rlimit{nofile.Max - 1, nofile.Max}) {
		c.limits = append(c.limits[:len(c.limits):len(c.limits)], Limit{rlimitNofile, nofile})
	}
	oks := [4]bool{}
	c.path, oks[0] = pointer(path)
	c.dir, oks[1] = pointer(attr.Dir)
	c.argv, oks[2] = pointers(argv)
	c.env, oks[3] = pointers(attr.Env)
	if oks != [4]bool{true, true, true, true} {
		return nil, false
	}
	c.plan(attr)
	return c, true
}

// plan lists what the child does.
func (c *child) plan(attr *Attr) {
	c.calls = make([]systemCall, 0, 16)
	add := func(number uintptr, args ...uintptr) {
		c.calls = append(c.calls, systemCall{number: number})
		copy(c.calls[len(c.calls)-1].args[:], args)
	}
	add(sysPrctl, prSetPdeathsig, uintptr(attr.Pdeathsig))
	add(sysGetppid) // the signal does not come for a thread that has ended before
	c.calls[1].want = call(sysGetpid, 0, 0, 0, 0)
	add(sysSetsid)
	for i := range c.limits {
		l := &c.limits[i]
		add(sysPrlimit, 0, uintptr(l.Resource), uintptr(unsafe.Pointer(&l.Rlimit)), 0)
	}
	// Before what may take for ever, lest the child not hear that it shall end.
	add(sysSigprocmask, sigSetMask, uintptr(unsafe.Pointer(&c.mask)), 0, maskBytes)
	for fd, file := range attr.Files {
		add(sysDup3, file, uintptr(fd), 0)
	}
	if attr.Ctty {
		add(sysIoctl, 0, tiocsctty, 1)
	}
	add(sysChdir, uintptr(unsafe.Pointer(c.dir)))
	add(sysExecve, uintptr(unsafe.Pointer(c.path)), uintptr(unsafe.Pointer(&c.argv[0])), uintptr(unsafe.Pointer(&c.env[0])))
}

// start makes the child and waits until it has executed its program or ended. A
// negative result is an errno.
func (c *child) start() (pid int) {
	// A handler of the program must not run in the child.
	all := ^uint64(0)
	call(sysSigprocmask, sigSetMask, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&c.mask)), maskBytes)
	pid = run(&c.args, &c.calls[0])
	call(sysSigprocmask, sigSetMask, uintptr(unsafe.Pointer(&c.mask)), 0, maskBytes)
	return pid
}

// run gives up the thread's place for the time of fork.
//
//go:nosplit
//go:norace
func run(args *cloneArgs, calls *systemCall) (pid int) {
	entersyscall()
	pid = fork(args, calls)
	exitsyscall()
	return pid
}

// fork makes a child, which makes the calls, the last of which does not return,
// and ends when one fails. The child has nothing but registers. A negative result
// is an errno.
func fork(args *cloneArgs, calls *systemCall) (pid int)

// call makes a system call. A negative result is an errno.
func call(number, a, b, c, d uintptr) (result uintptr)

//go:linkname entersyscall runtime.entersyscall
func entersyscall()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

func getrlimit(resource uintptr) (limit Rlimit) {
	call(sysPrlimit, 0, resource, 0, uintptr(unsafe.Pointer(&limit)))
	return limit
}

// pointer makes a string of C; ok is false when there is a NUL byte in it.
func pointer(s string) (p *byte, ok bool) {
	b := make([]byte, len(s)+1)
	copy(b, s)
	for i := range s {
		if b[i] == 0 {
			return nil, false
		}
	}
	return &b[0], true
}

func pointers(list []string) (result []*byte, ok bool) {
	result = make([]*byte, len(list)+1)
	for i, s := range list {
		if result[i], ok = pointer(s); !ok {
			return nil, false
		}
	}
	return result, true
}
