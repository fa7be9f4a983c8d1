package launcher

import (
	"encoding/binary"
	"os"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"execserver/internal/seccomp"
	"execserver/internal/sys"
)

// installed says that the program has called Run.
var installed bool

// Installed reports whether the program has called Run, without which it cannot start
// itself as a launcher.
func Installed() bool { return installed }

// Run makes this program a launcher or a probe if a server has started it as one, and
// does not return then. Otherwise it returns at once.
func Run() {
	installed = true
	switch {
	case len(os.Args) == 2 && os.Args[1] == Argument:
		runtime.LockOSThread()
		launch()
	case len(os.Args) == 4 && os.Args[1] == ProbeArgument:
		Require()
		runProbe(os.Args[2], os.Args[3])
	case len(os.Args) == 3 && os.Args[1] == LandlockArgument:
		Require()
		runLandlockProbe(os.Args[2])
	}
}

// Require ends this program unless a launcher has started it as a helper. The launcher
// leaves a helper the Spec, which names the helper and its arguments. Arguments,
// environment and standard streams alone therefore make no helper. Require closes the
// Spec.
func Require() {
	spec, err := readSpec()
	if err == nil && spec.Helper && slices.Equal(spec.Argv, os.Args) {
		_ = unix.Close(SpecFD)
		return
	}
	refuse()
}

// refuse ends a program that somebody has called with the arguments of a helper.
func refuse() {
	_, _ = os.Stderr.WriteString("Error: only a server that starts itself in a sandbox may call " + os.Args[1] + "\n")
	syscall.Exit(exitFailed)
}

// exitFailed is the exit code of a launcher whose command did not start. Launchers end
// with syscall.Exit: they have nothing to clean up, and with the race detector they would
// wait a second.
const exitFailed = 125

// launch does all the work of a launcher. The caller has locked it to its thread, which is
// confined and starts the command.
func launch() {
	if !isSocket(ControlFD) {
		refuse()
	}
	spec, err := readSpec()
	if err == nil {
		err = spec.keepDescriptors()
	}
	if err != nil {
		fail(StageConfine, "read what to do", err)
	}
	awaitServer()
	if err := spec.confineNetwork(); err != nil {
		fail(StageConfine, err.what, err.err)
	}
	spec.limitInotify()
	if err := spec.confineFiles(); err != nil {
		fail(err.stage(), err.what, err.err)
	}
	if err := spec.reopenDevices(); err != nil {
		fail(StageConfine, err.what, err.err)
	}
	if err := spec.enterDirectory(); err != nil {
		fail(StageDir, spec.Dir, err)
	}
	if err := spec.giveUpRights(); err != nil {
		fail(StageConfine, err.what, err.err)
	}
	if spec.Become {
		err := syscall.Exec(spec.Program, spec.Argv, spec.Env)
		fail(StageExec, spec.Program, err)
	}
	spec.startAndWait()
}

// enterDirectory changes to the directory in which the command starts.
func (s *Spec) enterDirectory() error {
	if err := unix.Chdir(s.Dir); err != nil || s.DirDevice == 0 && s.DirInode == 0 {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(".", &st); err != nil {
		return err
	}
	if uint64(st.Dev) != s.DirDevice || st.Ino != s.DirInode {
		return unix.ESTALE // it is another directory by now
	}
	return nil
}

// isSocket reports whether a descriptor is a socket of the kind that a server makes for
// its launcher.
func isSocket(fd int) bool {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	kind, kindErr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	return err == nil && kindErr == nil && domain == unix.AF_UNIX && kind == unix.SOCK_SEQPACKET
}

// keepDescriptors marks the launcher's descriptors close-on-exec. Only a helper gets the
// Spec.
func (s *Spec) keepDescriptors() error {
	if err := sys.CloseOnExecFrom(ControlFD); err != nil {
		return err
	}
	if !s.Helper {
		_ = unix.Close(SpecFD)
	}
	return nil
}

// readSpec reads the Spec.
func readSpec() (*Spec, error) {
	var st unix.Stat_t
	if err := unix.Fstat(SpecFD, &st); err != nil {
		return nil, err
	}
	b := make([]byte, st.Size)
	for got := 0; got < len(b); {
		n, err := unix.Pread(SpecFD, b[got:], int64(got))
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, unix.ENODATA
		}
		got += n
	}
	return Parse(b)
}

// awaitServer waits for a message of the server, the first of which is Begin. It ends the
// launcher if the server disconnects.
func awaitServer() (message []byte) {
	message = make([]byte, 2)
	for {
		n, err := unix.Read(ControlFD, message)
		if n > 0 {
			return message[:n]
		}
		if err != unix.EINTR {
			syscall.Exit(exitFailed)
		}
	}
}

// failure says what was attempted, and why it failed. nil is success.
type failure struct {
	what string
	err  error
}

// stage returns the Stage of a failure to confine files.
func (f *failure) stage() Stage {
	if f.err == errMoved {
		return StageMoved
	}
	return StageConfine
}

// attempt makes a failure from an error.
func attempt(what string, err error) *failure {
	if err == nil {
		return nil
	}
	return &failure{what, err}
}

// fail reports why the command did not start, and ends the launcher.
func fail(stage Stage, what string, err error) {
	f := Failure{Stage: stage, What: what}
	if errno, ok := err.(syscall.Errno); ok {
		f.Errno = errno
	} else {
		f.What += ": " + err.Error()
	}
	_ = send(f.append(nil)) // otherwise the server sees the exit code
	syscall.Exit(exitFailed)
}

// send sends a report with descriptors. It does not block, because there are at most
// three reports.
func send(report []byte, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	return unix.Sendmsg(ControlFD, report, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
}

// giveUpRights leaves this thread, and what it starts, with nothing that could undo the
// confinement. The other threads of the launcher lose their capabilities and get the same
// filter, so taking one over gains nothing. They stay outside of Landlock: each would be
// confined by rules of its own, and none could forward signals to the command. A program
// inside cannot use them, because nobody may trace the launcher or write its memory.
func (s *Spec) giveUpRights() *failure {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return &failure{"renounce new privileges", err}
	}
	if err := s.landlock(landlockABI()); err != nil {
		return err
	}
	if !s.KeepRights {
		if err := dropCapabilities(); err != nil {
			return &failure{"drop capabilities", err}
		}
	}
	if s.Processes > 0 {
		limit := unix.Rlimit{Cur: s.Processes, Max: s.Processes}
		if err := unix.Setrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
			return &failure{"limit the number of processes", err}
		}
	}
	if err := s.limitDescriptors(); err != nil {
		return &failure{"limit the number of descriptors", err}
	}
	if !s.Become {
		// As process 1 of its namespace, this process was started from outside. Its
		// program and directories must not be a way there.
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return &failure{"protect the launcher", err}
		}
	}
	if s.LandlockOnly {
		if err := seccomp.Install(seccomp.Neighbours()); err != nil {
			return &failure{"install the filter that protects other processes", err}
		}
	}
	return attempt("install the filter of system calls", seccomp.Install(seccomp.Filter(s.Network, !s.KeepRights)))
}

// limitDescriptors leaves the command half of the descriptors. The kernel counts those that
// a user's processes have sent through unix sockets and that nobody has received, and lets
// no process send more while there are more than its limit. So commands stop at half, and
// helpers, whose limit stays, can always send the files that they open.
func (s *Spec) limitDescriptors() error {
	if s.Helper {
		return nil
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Max /= 2
	if limit.Cur = limit.Max; s.Descriptors > 0 {
		limit.Cur = min(limit.Max, s.Descriptors)
	}
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
}

// dropCapabilities takes the capabilities of all threads away, and from this one the
// ways to get them back.
func dropCapabilities() error {
	for capability := range uintptr(64) {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
		if err == unix.EINVAL {
			break // there are no more
		}
		if err != nil && err != unix.EPERM {
			return err
		}
	}
	// Kernels before 4.3 have no ambient capabilities.
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0)
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP: // in a build with cgo, such as one with the race detector
		return unix.Capset(&header, &none[0])
	}
	return errno
}

// startAndWait starts the command, and ends as the command does.
func (s *Spec) startAndWait() {
	pidfd := -1
	files := []uintptr{0, 1, 2}
	if s.Helper {
		files = append(files, SpecFD)
	}
	pid, err := syscall.ForkExec(s.Program, s.Argv, &syscall.ProcAttr{
		Env:   s.Env,
		Files: files,
		Sys:   &syscall.SysProcAttr{Setsid: s.Session, Setctty: s.Terminal, PidFD: &pidfd},
	})
	if err != nil {
		fail(StageExec, s.Program, err)
	}
	signals := catchSignals()
	var fds []int
	if pidfd >= 0 {
		fds = append(fds, pidfd)
	}
	err = send([]byte{ReportStarted}, fds...)
	if err == unix.ETOOMANYREFS { // see limitDescriptors
		err = send([]byte{ReportStarted})
	}
	if err != nil {
		syscall.Exit(exitFailed) // the server has gone
	}
	if pidfd >= 0 {
		_ = unix.Close(pidfd)
	}
	for fd := range 3 {
		_ = unix.Close(fd) // they end when the command's processes close them
	}
	go obeyServer(pid, s.Session)
	go passSignals(signals, pid, s.Session)
	status := wait(pid)
	report := binary.LittleEndian.AppendUint32([]byte{ReportEnded}, uint32(status))
	_ = send(report) // otherwise the server sees the exit code
	if status.Signaled() {
		syscall.Exit(128 + int(status.Signal()))
	}
	syscall.Exit(status.ExitStatus())
}

// obeyServer signals the command when the server says so, and ends the launcher when the
// server disconnects.
func obeyServer(command int, group bool) {
	if group {
		command = -command
	}
	for {
		if message := awaitServer(); len(message) == 2 && message[0] == Signal {
			_ = syscall.Kill(command, syscall.Signal(message[1])) // it may have ended
		}
	}
}

// wait reaps children until the command has ended.
func wait(command int) (status syscall.WaitStatus) {
	for {
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			syscall.Exit(exitFailed)
		case pid == command:
			return status
		}
	}
}
