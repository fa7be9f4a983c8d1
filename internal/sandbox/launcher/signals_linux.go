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

// catchSignals catches the signals to forward. It also removes the handlers of the fatal ones:
// process 1 of a namespace receives no signal from inside that it does not handle, so a command
// cannot end the launcher, and the server sees how the command ended. A fault still ends it.
func catchSignals() <-chan os.Signal {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	var action [4]uintptr // the kernel's sigaction: SIG_DFL, and nothing else
	for _, number := range fatal {
		const maskBytes = 8
		_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(number), uintptr(unsafe.Pointer(&action)), 0, maskBytes, 0, 0)
	}
	return signals
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
