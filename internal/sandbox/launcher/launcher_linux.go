package launcher

import (
	"encoding/binary"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"execserver/internal/descriptors"
	"execserver/internal/seccomp"
)

func init() {
	if len(os.Args) == 2 && os.Args[1] == Argument {
		launch()
	}
}

// exitFailed is the code of a launcher whose command was not started. Launchers
// end by syscall.Exit: there is nothing to be done before, and with the race
// detector they would wait a second.
const exitFailed = 125

// launch is all that a launcher does. It runs on the first thread, as init does,
// which is the one that is confined and starts the command.
func launch() {
	spec, err := readSpec()
	if err != nil {
		fail(StageConfine, "read what to do", err)
	}
	awaitServer()
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

// enterDirectory goes where the command begins.
func (s *Spec) enterDirectory() error {
	if err := unix.Chdir(s.Dir); err != nil || s.DirDevice == 0 && s.DirInode == 0 {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(".", &st); err != nil {
		return err
	}
	if uint64(st.Dev) != s.DirDevice || st.Ino != s.DirInode {
		return unix.ESTALE // it is another one by now
	}
	return nil
}

// readSpec takes the Spec, and keeps descriptors that are not for the command
// from it.
func readSpec() (*Spec, error) {
	if err := descriptors.Close(ControlFD + 1); err != nil {
		return nil, err
	}
	unix.CloseOnExec(ControlFD)
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
	_ = unix.Close(SpecFD)
	return Parse(b)
}

// awaitServer waits for a word of the server, and ends when that lets go of the launcher.
func awaitServer() {
	var b [1]byte
	for {
		n, err := unix.Read(ControlFD, b[:])
		if n > 0 {
			return
		}
		if err != unix.EINTR {
			syscall.Exit(exitFailed)
		}
	}
}

// failure is what was attempted, and why it failed; nil is success.
type failure struct {
	what string
	err  error
}

// stage is that of a failure to confine files.
func (f *failure) stage() Stage {
	if f.err == errMoved {
		return StageMoved
	}
	return StageConfine
}

// attempt makes a failure of an error.
func attempt(what string, err error) *failure {
	if err == nil {
		return nil
	}
	return &failure{what, err}
}

// fail reports why the command is not started, and ends the launcher.
func fail(stage Stage, what string, err error) {
	f := Failure{Stage: stage, What: what}
	if errno, ok := err.(syscall.Errno); ok {
		f.Errno = errno
	} else {
		f.What += ": " + err.Error()
	}
	_ = send(f.append(nil)) // who does not listen sees the exit code
	syscall.Exit(exitFailed)
}

// send sends a report, with descriptors. It does not wait: there are three
// reports at most.
func send(report []byte, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	return unix.Sendmsg(ControlFD, report, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
}

// giveUpRights leaves this thread, and what it starts, with nothing that could
// undo the confinement. The other threads of the launcher lose their capabilities
// and have the same filter, so that there is nothing to be gained by them. They are
// outside of Landlock: each would be confined by rules of its own, and none could
// pass signals on to the command. A program inside cannot use that, for nobody may
// trace the launcher or write its memory.
func (s *Spec) giveUpRights() *failure {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return &failure{"renounce new privileges", err}
	}
	if err := s.landlock(); err != nil {
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
	if !s.Become {
		// As process 1 of its namespace, this one was started from outside: its
		// own program and directories must not be a way there.
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return &failure{"protect the launcher", err}
		}
	}
	if s.LandlockOnly {
		if err := seccomp.Install(seccomp.Neighbours()); err != nil {
			return &failure{"install the filter that protects other processes", err}
		}
	}
	return attempt("install the filter of system calls", seccomp.Install(seccomp.Filter(s.RestrictNetwork, !s.KeepRights)))
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
	// Kernels before 4.3 know no ambient capabilities.
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0)
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP: // in a build with cgo, as for the race detector
		return unix.Capset(&header, &none[0])
	}
	return errno
}

// startAndWait starts the command, and ends as it does.
func (s *Spec) startAndWait() {
	pidfd := -1
	pid, err := syscall.ForkExec(s.Program, s.Argv, &syscall.ProcAttr{
		Env:   s.Env,
		Files: []uintptr{0, 1, 2},
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
	if err := send([]byte{ReportStarted}, fds...); err != nil {
		syscall.Exit(exitFailed) // the server has gone
	}
	if pidfd >= 0 {
		_ = unix.Close(pidfd)
	}
	for fd := range 3 {
		_ = unix.Close(fd) // they end when the command's processes let go of them
	}
	go endWithServer()
	go passSignals(signals, pid, s.Session)
	time.AfterFunc(settled, forgetStart)
	status := wait(pid)
	report := binary.LittleEndian.AppendUint32([]byte{ReportEnded}, uint32(status))
	_ = send(report) // who does not listen sees the exit code
	if status.Signaled() {
		syscall.Exit(128 + int(status.Signal()))
	}
	syscall.Exit(status.ExitStatus())
}

// endWithServer ends the launcher when the server lets go of it.
func endWithServer() {
	for {
		awaitServer()
	}
}

// wait reaps whatever ends, until that is the command.
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
