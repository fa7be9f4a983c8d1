package launcher

import (
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that the launcher forwards to the command. Catching them also
// keeps them from ending the launcher.
var forwarded = []os.Signal{
	syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

// fatal are the signals on which the Go runtime ends a program, even if another process sent
// them.
var fatal = []syscall.Signal{
	syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGSTKFLT, syscall.SIGSYS,
}

// unhandled are the signals that end a program and for which the Go runtime has no handler.
var unhandled = []syscall.Signal{32, 34}

// catchSignals catches the signals to forward, and keeps all others from ending the launcher, so
// that a command cannot end it, and the server sees how the command ended. For process 1 of a
// namespace the kernel drops what it has no handler for, but not surely while a thread blocks
// signals, as it does to start the command. A fault still ends the launcher.
func catchSignals() <-chan os.Signal {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	ignore := action{handler: 1} // SIG_IGN; package syscall gives the command the default again
	for _, number := range fatal {
		setAction(number, &ignore, nil)
	}
	// The command would inherit that these are ignored. The runtime's handler ignores them, too.
	var caught action
	setAction(syscall.SIGUSR1, nil, &caught)
	for _, number := range unhandled {
		setAction(number, &caught, nil)
	}
	return signals
}

// action is the kernel's sigaction.
type action struct{ handler, flags, restorer, mask uintptr }

// setAction sets what a signal does, unless it is nil, and returns in old what it did.
func setAction(number syscall.Signal, to, old *action) {
	const maskBytes = 8
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(number), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(old)), maskBytes, 0, 0)
}

// ReserveThreads makes the Go runtime create and keep a number of threads. The runtime ends a
// program if it cannot create a thread, for example while a command uses up the limit of
// processes.
func ReserveThreads(threads int) {
	var ready, ended sync.WaitGroup
	leave := make(chan struct{})
	ready.Add(threads)
	for range threads {
		ended.Go(func() {
			runtime.LockOSThread() // no other goroutine uses the thread until then
			defer runtime.UnlockOSThread()
			ready.Done()
			<-leave
		})
	}
	ready.Wait()
	close(leave)
	ended.Wait()
}

// fromTerminal reports whether a terminal sent a signal, to every process in the group.
// Standard input is closed by now, but the terminal stays the launcher's.
func fromTerminal(number syscall.Signal) bool {
	if number != syscall.SIGINT && number != syscall.SIGQUIT {
		return false
	}
	fd, err := syscall.Open("/dev/tty", syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	_ = syscall.Close(fd)
	return true
}

// command is the command that the launcher has started.
type command struct {
	pid   int
	group bool // it leads a process group of its own

	mu     sync.Mutex
	reaped bool // its process id may have been reused
}

// signal signals the command, or its group if it has one of its own.
func (c *command) signal(number syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.reaped:
	case c.group:
		_ = syscall.Kill(-c.pid, number) // it may have ended
	default:
		_ = syscall.Kill(c.pid, number)
	}
}

// forwardSignals forwards signals to the command. In the launcher's group, a signal from the
// terminal has reached the command already.
func (c *command) forwardSignals(signals <-chan os.Signal) {
	for sig := range signals {
		if number := sig.(syscall.Signal); c.group || !fromTerminal(number) {
			c.signal(number)
		}
	}
}

// obeyRequests signals the command on request of the server, and ends the launcher when the
// server disconnects.
func (c *command) obeyRequests() {
	for {
		if message := awaitServer(); len(message) == 2 && message[0] == Signal {
			c.signal(syscall.Signal(message[1]))
		}
	}
}

// wait reaps children until the command has ended.
func (c *command) wait() (status syscall.WaitStatus) {
	for {
		switch err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil); err {
		case nil, unix.EINTR:
		default:
			syscall.Exit(exitFailed)
		}
		if c.reap(&status) {
			return status
		}
	}
}

// reap reaps a child that has ended, if any, and reports whether it was the command, which
// then receives no more signals.
func (c *command) reap(status *syscall.WaitStatus) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	pid, _ := syscall.Wait4(-1, status, syscall.WNOHANG, nil)
	c.reaped = pid == c.pid
	return c.reaped
}
