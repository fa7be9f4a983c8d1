package supervisor

import (
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func execute(variable string, info Info) error {
	self, err := Program()
	if err != nil {
		return err
	}
	entry, fd, err := info.handOver(variable)
	if err != nil {
		return err
	}
	err = syscall.Exec(self, os.Args, append(os.Environ(), entry))
	_ = unix.Close(fd)
	return &os.PathError{Op: "execute", Path: self, Err: err}
}

// Program returns the path of this program, or a name for it that works even after its
// file was replaced.
func Program() (string, error) {
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

// forwarded are the signals that the supervisor forwards to the server. The signals that stop
// and continue are not among them, because the terminal sends them to both.
var forwarded = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGPWR,
}

// Run makes this program the supervisor of a server: it starts the program again as the server,
// with the same arguments, environment and descriptors, and ends as the server does. It
// returns only if the server cannot be started. If info.Private is not empty, the server
// starts in a user namespace and a mount namespace of its own, with the capability to mount,
// and info.Private is added to its environment.
func Run(info Info) error {
	info.Supervisor = os.Getpid()
	runtime.LockOSThread() // see startServer
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	server, err := startServer(info)
	if err != nil {
		runtime.UnlockOSThread() // this program serves without a supervisor, then
		signal.Stop(signals)
		return err
	}
	closeStreams()
	debug.FreeOSMemory() // this program only waits from now on
	info.Status = watch(server, signals)
	if left(info) {
		// Finding and killing it takes the whole program. If that cannot start
		// either, its own log reports it.
		_ = execute(leftVariable, info)
	}
	EndAs(info.Status)
	return nil
}

func becomeSubreaper() error {
	const prSetChildSubreaper = 36
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return os.NewSyscallError("become the parent of orphaned descendants", errno)
	}
	return nil
}

// startServer starts the server. The caller has locked itself to its thread: the kernel sends
// the parent-death signal to the server when that thread ends.
func startServer(info Info) (pid int, err error) {
	self, err := Program()
	if err != nil {
		return 0, err
	}
	if err := becomeSubreaper(); err != nil {
		return 0, err
	}
	entry, fd, err := info.handOver(serverVariable)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	attr := &syscall.ProcAttr{
		Env:   append(os.Environ(), entry),
		Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{
			Pdeathsig: syscall.SIGTERM, // ForkExec checks that the parent has not ended before
			// On a terminal the shell treats supervisor and server as one job. Elsewhere a
			// signal that kills the supervisor's group must not kill both.
			Setpgid: !onTerminal(),
		},
	}
	if info.Private != "" {
		attr.Env = append(attr.Env, info.Private)
		UserNamespace(attr.Sys)
	}
	return syscall.ForkExec(self, os.Args, attr)
}

// UserNamespace adds to the attributes of a process a user namespace, in which the ids are
// the same, and a mount namespace in which it may mount.
func UserNamespace(attr *syscall.SysProcAttr) {
	attr.Cloneflags |= syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
	attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
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

// closeStreams closes the supervisor's stdin and stdout, so that others notice when the
// server closes them.
func closeStreams() {
	null, err := syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	for fd := range 2 {
		_ = syscall.Dup3(null, fd, 0)
	}
	_ = syscall.Close(null)
}

// watch forwards signals until the server has ended, and returns its status.
func watch(server int, signals <-chan os.Signal) (status syscall.WaitStatus) {
	var mu sync.Mutex
	reaped := false
	go func() { // runs until the program ends
		for sig := range signals {
			mu.Lock()
			if !reaped {
				_ = syscall.Kill(server, sig.(syscall.Signal)) // the server may have ended
			}
			mu.Unlock()
		}
	}()
	for waitid(server) == syscall.EINTR {
	}
	mu.Lock() // until the server is reaped, its process id is its own
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

// left reports whether the server has left a child or its control groups. A subreaper
// without children has no descendants.
func left(info Info) bool {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG|syscall.WALL, nil)
		if err == nil && pid == 0 {
			return true // a child that still runs
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

// EndAs ends this program in the same way as the server.
func EndAs(status syscall.WaitStatus) {
	if !status.Signaled() {
		os.Exit(status.ExitStatus())
	}
	// One core dump is enough.
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
	sig := status.Signal()
	signal.Reset(sig)
	_ = syscall.Kill(os.Getpid(), sig)
	time.Sleep(time.Second) // until the signal kills this program, if it can
	os.Exit(128 + int(sig))
}

// Info is passed between the supervisor, the server and the program that starts them.
type Info struct {
	Supervisor int                // its process id
	Cgroups    string             // the claimed directory, or empty
	Reason     string             // why none was claimed
	Private    string             // see Keep
	LogFormat  string             // of the server
	Status     syscall.WaitStatus // of the server, once it has ended
}

// Environment variables that give this program its role. The value is the number of a
// descriptor of an unnamed file that holds the Info. The environment alone therefore gives
// no role.
const (
	serverVariable = "EXEC_SERVER_KEPT" // a server that has a supervisor
	leftVariable   = "EXEC_SERVER_LEFT" // a supervisor whose server left descendants
)

func (i Info) String() string {
	return strings.Join([]string{
		strconv.Itoa(i.Supervisor), strconv.Itoa(int(i.Status)), i.Cgroups, i.Private, i.LogFormat, i.Reason,
	}, "\n")
}

// handOver writes i to a file whose descriptor survives exec. entry is the environment
// variable that announces the file.
func (i Info) handOver(variable string) (entry string, fd int, err error) {
	fd, err = unix.MemfdCreate("supervisor", 0)
	if err != nil {
		return "", -1, os.NewSyscallError("memfd_create", err)
	}
	if _, err := unix.Write(fd, []byte(i.String())); err != nil {
		_ = unix.Close(fd)
		return "", -1, os.NewSyscallError("write", err)
	}
	return variable + "=" + strconv.Itoa(fd), fd, nil
}

// maxInfo exceeds the size of any Info. Its longest part, Private, is also bounded by the
// kernel's limit of one variable.
const maxInfo = 256 << 10

// receive reads the Info that a variable announces. It removes the variable from the
// environment and closes the descriptor, because they are not for children. isSupervisor
// reports whether the Info was meant for this process.
func receive(variable string, isSupervisor func(pid int) bool) (i Info, ok bool) {
	fd, err := strconv.Atoi(os.Getenv(variable))
	_ = os.Unsetenv(variable) // the name is well-formed
	if err != nil || fd <= 2 {
		return Info{}, false
	}
	b := make([]byte, maxInfo)
	n, err := unix.Pread(fd, b, 0)
	fields := strings.SplitN(string(b[:max(n, 0)]), "\n", 6)
	if err != nil || len(fields) != 6 {
		return Info{}, false
	}
	var errs [2]error
	var status int
	i.Supervisor, errs[0] = strconv.Atoi(fields[0])
	status, errs[1] = strconv.Atoi(fields[1])
	i.Status, i.Cgroups, i.Private = syscall.WaitStatus(status), fields[2], fields[3]
	i.LogFormat, i.Reason = fields[4], fields[5]
	if errs != [2]error{} || !isSupervisor(i.Supervisor) {
		return Info{}, false
	}
	_ = unix.Close(fd)
	return i, true
}

func isParent(pid int) bool { return pid == os.Getppid() }

func isSelf(pid int) bool { return pid == os.Getpid() }

// Server returns what a server knows about its supervisor. ok is false if it has none, and
// in every later call.
func Server() (info Info, ok bool) { return receive(serverVariable, isParent) }

// Left returns info.Status, the exit status of the server, to a supervisor whose server
// left descendants that this program must kill. ok is true only in the first call.
func Left() (info Info, ok bool) { return receive(leftVariable, isSelf) }
