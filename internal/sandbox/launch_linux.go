package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/sandbox/launcher"
)

// Command is the command to start in a confinement.
type Command struct {
	Program string // as for execvp, with the PATH of Env; it is found inside
	Argv    []string
	Env     []string
	Dir     string   // inside
	DirFile *os.File // Dir, opened outside, in which the command must start; nil: wherever Dir leads
	// Terminal makes standard input the controlling terminal of the command's session.
	Terminal bool
	// Shared keeps the command in the session and group of the launcher.
	Shared bool
	// Exec makes the launcher replace itself with the command (execve). Then nothing reaps
	// the command's orphans.
	Exec bool
	// Helper is set if the command is this program, run as a helper: see launcher.Require.
	Helper bool

	// Started, if not nil, is called by Run with the launcher once the program has started.
	// From then on the launcher forwards signals to it.
	Started func(*os.Process)
}

// maxReportBytes is the largest report of a launcher.
const maxReportBytes = 4096

// launchTimeout bounds how long a launcher takes to start its command.
const launchTimeout = 10 * time.Second

// Launch is the start of one command. Start the program of Path and Args with an empty
// environment, with Files after its three streams, and with the attributes. Then call
// Wait.
type Launch struct {
	Path  string
	Args  []string
	Files []*os.File

	attributes func(*syscall.SysProcAttr)
	control    *os.File
	exec       bool
	mapsIDs    bool   // the launcher is in a user namespace of its own
	wrapped    bool   // bubblewrap starts the launcher
	isolated   bool   // the command has no network
	pid        int    // of the launcher, or of bubblewrap, while it is in isolatedLaunchers; otherwise 0
	start      uint64 // of that process

	// known is closed when the launcher is in isolatedLaunchers, or will never be. It is nil
	// if the command is not isolated.
	known chan struct{}
}

// isolatedLaunchers are the launchers whose commands have no network: their start times (see
// procfs.Stat) by process id, because a launcher may end, and its id belong to another process,
// before it is removed. isolatedLaunches are the Launches whose launcher may run without being one
// of them yet.
var isolatedLaunchers, isolatedLaunches sync.Map

// IsIsolated reports whether a process is the launcher, or the bubblewrap, of a command that has
// its own network namespace. A process in that sandbox can receive no descriptor from another
// program: its only sockets are pairs of its own. IsIsolated waits for starts under way, at
// most launchTimeout, if the process may be one of their launchers.
func IsIsolated(pid int) bool {
	stat, err := procfs.ReadStat(pid)
	if err != nil {
		return false
	}
	isLauncher := func() bool {
		start, ok := isolatedLaunchers.Load(pid)
		return ok && start == stat.Start
	}
	if isLauncher() {
		return true
	}
	if stat.Parent != os.Getpid() {
		return false
	}
	timeout := time.NewTimer(launchTimeout)
	defer timeout.Stop()
	isolatedLaunches.Range(func(l, _ any) bool {
		select {
		case <-l.(*Launch).known:
			return true
		case <-timeout.C:
			return false
		}
	})
	return isLauncher()
}

// prepare lets IsIsolated wait for this launch.
func (l *Launch) prepare() {
	if l.isolated {
		l.known = make(chan struct{})
		isolatedLaunches.Store(l, nil)
	}
}

// setKnown ends the wait of IsIsolated for this launch.
func (l *Launch) setKnown() {
	if _, ok := isolatedLaunches.LoadAndDelete(l); ok {
		close(l.known)
	}
}

// Launch prepares the start of a command.
func (c *Confinement) Launch(command Command) (*Launch, error) {
	l := &Launch{exec: command.Exec || c.plan.nothing || c.mechanism == MechanismLandlock, isolated: !c.plan.network}
	described, err := c.spec(command)
	if err != nil {
		return nil, err
	}
	spec, err := memoryFile(described.Append(nil))
	if err != nil {
		return nil, err
	}
	l.Files = append(l.Files, spec)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		_ = spec.Close()
		return nil, os.NewSyscallError("make the launcher's socket", err)
	}
	l.Files = append(l.Files, os.NewFile(uintptr(pair[1]), "launcher's end"))
	_ = unix.SetNonblock(pair[0], true) // so that the poller accepts it
	l.control = os.NewFile(uintptr(pair[0]), "launcher")
	l.Path, l.Args = "/proc/self/exe", []string{"exec-server", launcher.Argument}
	l.attributes = func(*syscall.SysProcAttr) {}
	l.prepare()
	switch {
	case c.plan.nothing:
	case c.mechanism == MechanismBubblewrap:
		if err := c.bubblewrap(l); err != nil {
			l.Close()
			return nil, err
		}
	case c.mechanism == MechanismUser, c.mechanism == MechanismNamespaces:
		l.mapsIDs = c.mechanism == MechanismUser
		l.attributes = func(attr *syscall.SysProcAttr) { c.namespaces(attr) }
	}
	return l, nil
}

// memoryFile creates a file without a name.
func memoryFile(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("launcher", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("make the launcher's file", err)
	}
	file := os.NewFile(uintptr(fd), "launcher's file")
	if _, err := file.Write(content); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// Execs reports whether the launcher replaces itself with the command instead of staying its
// parent.
func (l *Launch) Execs() bool { return l.exec }

// Attributes adds the attributes of the launcher's process.
func (l *Launch) Attributes(attr *syscall.SysProcAttr) {
	attr.Pdeathsig = syscall.SIGKILL
	l.attributes(attr)
}

// namespaces adds the namespaces of the plan.
func (c *Confinement) namespaces(attr *syscall.SysProcAttr) {
	attr.Cloneflags |= unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC
	if !c.plan.network {
		attr.Cloneflags |= unix.CLONE_NEWNET
	}
	if c.mechanism == MechanismUser {
		// To map ids before the child executes anything, package syscall would copy this
		// program's memory for a child in another user namespace. Here the launcher waits
		// until its ids are mapped instead.
		attr.Cloneflags |= unix.CLONE_NEWUSER | unix.CLONE_VM | unix.CLONE_VFORK
	}
	if c.mechanism == MechanismUser || os.Geteuid() != 0 {
		// The capabilities survive the execution of the launcher, which drops them.
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP, unix.CAP_SYS_CHROOT}
		if c.mechanism == MechanismUser { // the launcher sets the namespace's limits
			attr.AmbientCaps = append(attr.AmbientCaps, unix.CAP_SYS_RESOURCE)
		}
		if !c.plan.network && (c.mechanism == MechanismUser || hasCapability(unix.CAP_NET_ADMIN)) {
			attr.AmbientCaps = append(attr.AmbientCaps, unix.CAP_NET_ADMIN) // for the loopback interface
		}
		if os.Geteuid() == 0 { // root enters directories that others may not
			attr.AmbientCaps = append(attr.AmbientCaps, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH)
		}
	}
}

// Started is a running command. Pid is 0 if the launcher replaced itself with the command,
// or if the kernel does not report it.
type Started struct{ Pid int }

// ErrLauncherEnded is the error of Wait if the launcher has ended without a report. How it ended
// is then all that is known.
var ErrLauncherEnded = &launcher.Failure{Stage: launcher.StageConfine, What: "the launcher ended before it reported that the command started"}

// Wait lets the launcher with a process id begin, waits until the command has started,
// and closes the launcher's files. The error is a *launcher.Failure if the launcher
// reported it.
func (l *Launch) Wait(pid int) (Started, error) {
	l.closeFiles()
	if l.isolated {
		if stat, err := procfs.ReadStat(pid); err == nil { // it is not reaped yet
			l.pid, l.start = pid, stat.Start
			isolatedLaunchers.Store(pid, l.start)
		}
		l.setKnown()
	}
	if err := l.begin(pid); err != nil {
		return Started{}, &launcher.Failure{Stage: launcher.StageConfine, What: err.Error()}
	}
	_ = l.control.SetReadDeadline(time.Now().Add(launchTimeout))
	report, fd, err := Receive(l.control, maxReportBytes, syscall.RawConn.Read)
	switch {
	case l.exec && errors.Is(err, io.EOF):
		return Started{}, nil // it has executed the command
	case errors.Is(err, io.EOF) && l.wrapped:
		// A file that it mounts may have disappeared.
		return Started{}, &launcher.Failure{Stage: launcher.StageChanged, What: "bubblewrap has ended before it started the launcher"}
	case errors.Is(err, io.EOF):
		return Started{}, ErrLauncherEnded
	case err != nil:
		return Started{}, &launcher.Failure{Stage: launcher.StageConfine, What: "wait for the launcher: " + err.Error()}
	case report[0] == launcher.ReportFailed:
		return Started{}, launcher.ParseFailure(report)
	case report[0] != launcher.ReportStarted:
		return Started{}, &launcher.Failure{Stage: launcher.StageConfine, What: fmt.Sprintf("the launcher reports %q", report)}
	}
	_ = l.control.SetReadDeadline(time.Time{})
	if fd < 0 {
		return Started{}, nil
	}
	defer unix.Close(fd)
	return Started{pidOf(fd)}, nil
}

// begin sends the message for which the launcher waits.
func (l *Launch) begin(pid int) error {
	if l.mapsIDs {
		err := mapIDs(pid)
		if errors.Is(err, syscall.EPERM) && os.Geteuid() == 0 { // without CAP_SETFCAP
			return errors.New("the kernel refuses namespaces to root without capabilities, but not to other users")
		}
		if err != nil {
			return fmt.Errorf("map the ids of the launcher's user namespace: %w", err)
		}
	}
	_, err := l.control.Write([]byte{launcher.Begin})
	if errors.Is(err, syscall.EPIPE) {
		return nil // it has ended, and its report has the reason
	}
	return err
}

// Signal asks the launcher to send a signal to the command's process group, without waiting.
// It is not an error if the launcher has ended, because the command has ended with it.
func (l *Launch) Signal(sig syscall.Signal) error {
	raw, err := l.control.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = raw.Control(func(control uintptr) {
		message := []byte{launcher.Signal, byte(sig)}
		sendErr = unix.Sendmsg(int(control), message, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	})
	if err == nil {
		err = sendErr
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask the launcher of the sandbox: %w", err)
	}
	return nil
}

// Receive receives a message of at most size bytes from a socket, and the descriptor passed
// with it, or -1. It returns io.EOF at the end. when waits for the message, for example with
// syscall.RawConn.Read. The caller owns the results.
func Receive(socket *os.File, size int, when func(syscall.RawConn, func(uintptr) bool) error) (message []byte, fd int, err error) {
	message, fd, _, err = ReceiveFrom(socket, size, when)
	return message, fd, err
}

// ReceiveFrom is like Receive, and returns the id of the sending process if the socket has
// SO_PASSCRED.
func ReceiveFrom(socket *os.File, size int, when func(syscall.RawConn, func(uintptr) bool) error) (message []byte, fd, pid int, err error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, -1, 0, err
	}
	message, rights := make([]byte, size), make([]byte, unix.CmsgSpace(4)+unix.CmsgSpace(unix.SizeofUcred))
	var n, more int
	var receiveErr error
	err = when(raw, func(s uintptr) bool {
		for range 2 {
			n, more, _, _, receiveErr = unix.Recvmsg(int(s), message, rights, unix.MSG_CMSG_CLOEXEC)
			if receiveErr != unix.ECONNRESET {
				break // reported once; messages sent before follow
			}
		}
		return receiveErr != unix.EAGAIN
	})
	switch {
	case err != nil:
		return nil, -1, 0, err
	case receiveErr != nil:
		return nil, -1, 0, receiveErr
	case n == 0:
		return nil, -1, 0, io.EOF
	}
	fd, pid = received(rights[:more])
	return message[:n], fd, pid, nil
}

// received returns the descriptor that came with a message, or -1, and the sender's process id.
func received(control []byte) (fd, pid int) {
	fd = -1
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return fd, 0
	}
	for _, message := range messages {
		if sender, err := unix.ParseUnixCredentials(&message); err == nil {
			pid = int(sender.Pid)
		}
		fds, err := unix.ParseUnixRights(&message)
		if err != nil {
			continue
		}
		for _, more := range fds {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
			fd = more
		}
	}
	return fd, pid
}

// Status returns the command's wait status, once its launcher has ended. It returns false
// if the launcher was killed first.
func (l *Launch) Status() (syscall.WaitStatus, bool) {
	report, fd, err := Receive(l.control, maxReportBytes, func(raw syscall.RawConn, f func(uintptr) bool) error {
		return raw.Control(func(control uintptr) { f(control) })
	})
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	if err != nil || report[0] != launcher.ReportEnded {
		return 0, false
	}
	status, ok := launcher.ParseEnded(report)
	return syscall.WaitStatus(status), ok
}

// Close disconnects from the launcher, which then ends together with the sandbox.
func (l *Launch) Close() {
	l.setKnown()
	if l.pid > 0 {
		isolatedLaunchers.CompareAndDelete(l.pid, l.start) // another launcher may have the id by now
		l.pid = 0
	}
	l.closeFiles()
	_ = l.control.Close()
}

func (l *Launch) closeFiles() {
	for _, file := range l.Files {
		_ = file.Close()
	}
	l.Files = nil
}
