package keeper

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

func init() {
	if info, ok := take(keeperVariable, isSelf); ok {
		keep(info)
	}
}

// Start makes this program a keeper, which starts it again as the server, with
// the same arguments, environment and descriptors. It returns only if that fails.
func Start(info Info) error {
	info.Keeper = os.Getpid()
	self, err := program()
	if err != nil {
		return err
	}
	return execute(self, keeperVariable, info)
}

func execute(self, variable string, info Info) error {
	err := syscall.Exec(self, os.Args, append(os.Environ(), variable+"="+info.String()))
	return &os.PathError{Op: "execute", Path: self, Err: err}
}

// program is the path of this program, or a name for it that works although its
// file has been replaced.
func program() (string, error) {
	const link = "/proc/self/exe"
	running, err := os.Stat(link)
	if err != nil {
		return "", err
	}
	path, err := os.Executable()
	if err != nil {
		return link, nil
	}
	if named, err := os.Stat(path); err != nil || !os.SameFile(named, running) {
		return link, nil
	}
	return path, nil
}

// forwarded are the signals that mean the server when they are sent to the
// keeper. Those that stop and continue are not: the terminal sends them to both.
var forwarded = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGPWR,
}

// keep starts the server and ends as it does.
func keep(info Info) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	self, err := program()
	if err == nil {
		err = becomeSubreaper()
	}
	var server int
	if err == nil {
		server, err = startServer(self, info)
	}
	if err != nil {
		_, _ = os.Stderr.WriteString("Error: start the server: " + err.Error() + "; try --keeper=off\n")
		os.Exit(1)
	}
	letGoOfStreams()
	info.Status = watch(server, signals)
	if left(info) {
		// The whole program is needed to find and kill it. What it cannot do
		// either is told by its own log.
		_ = execute(self, leftVariable, info)
	}
	EndAs(info.Status)
}

func becomeSubreaper() error {
	const prSetChildSubreaper = 36
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return os.NewSyscallError("become the parent of orphaned descendants", errno)
	}
	return nil
}

// startServer starts the server. It runs on the program's first thread, as all
// of init does: the kernel tells the server that its parent has ended when that
// thread has.
func startServer(self string, info Info) (pid int, err error) {
	return syscall.ForkExec(self, os.Args, &syscall.ProcAttr{
		Env:   append(os.Environ(), serverVariable+"="+info.String()),
		Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{
			Pdeathsig: syscall.SIGTERM, // ForkExec checks that the parent has not ended before
			// On a terminal the shell deals with keeper and server as one job.
			// Elsewhere what kills the keeper's group must not kill both.
			Setpgid: !onTerminal(),
		},
	})
}

func onTerminal() bool {
	var state syscall.Termios
	for fd := range uintptr(3) {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TCGETS, uintptr(unsafe.Pointer(&state))); errno == 0 {
			return true
		}
	}
	return false
}

// letGoOfStreams leaves stdin and stdout to the server, so that others see it
// close them.
func letGoOfStreams() {
	null, err := syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	for fd := range 2 {
		_ = syscall.Dup3(null, fd, 0)
	}
	_ = syscall.Close(null)
}

// watch passes signals on until the server has ended, and returns how it has.
func watch(server int, signals <-chan os.Signal) (status syscall.WaitStatus) {
	var mu sync.Mutex
	reaped := false
	go func() { // ends with the program
		for sig := range signals {
			mu.Lock()
			if !reaped {
				_ = syscall.Kill(server, sig.(syscall.Signal)) // it may have ended
			}
			mu.Unlock()
		}
	}()
	for waitid(server) == syscall.EINTR {
	}
	mu.Lock() // until it is reaped, the number is the server's own
	defer mu.Unlock()
	reaped = true
	for {
		if _, err := syscall.Wait4(server, &status, 0, nil); err != syscall.EINTR {
			return status
		}
	}
}

// waitid waits for a child to end, but does not reap it.
func waitid(pid int) syscall.Errno {
	const pPID, wNoWait = 1, 0x01000000
	_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pPID, uintptr(pid), 0, syscall.WEXITED|wNoWait, 0, 0)
	return errno
}

// left reports whether the server has left anything: a child, for a subreaper
// without children has no descendants; or its control groups.
func left(info Info) bool {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG|syscall.WALL, nil)
		if err == nil && pid == 0 {
			return true // one that runs
		}
		if err == syscall.ECHILD {
			break
		}
	}
	if info.Cgroups == "" {
		return false
	}
	_, err := os.Lstat(info.Cgroups)
	return err == nil
}

// EndAs ends this program as the server has ended.
func EndAs(status syscall.WaitStatus) {
	if !status.Signaled() {
		os.Exit(status.ExitStatus())
	}
	// One core dump is enough.
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
	sig := status.Signal()
	signal.Reset(sig)
	_ = syscall.Kill(os.Getpid(), sig)
	time.Sleep(time.Second) // the signal kills this program meanwhile, if it may
	os.Exit(128 + int(sig))
}
