package launcher

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"execserver/internal/execvp"
	"execserver/internal/seccomp"
	"execserver/internal/sys"
)

// installed is set once the program has called Run.
var installed bool

// Installed reports whether the program has called Run, without which it cannot start
// itself as a launcher.
func Installed() bool { return installed }

// init keeps a launcher on the main thread. The kernel lets a confined command send signals only
// to processes whose main thread is confined like it, and the thread of the launcher that calls
// Run is the one that is confined.
func init() {
	if isLauncher() {
		runtime.LockOSThread()
	}
}

func isLauncher() bool { return len(os.Args) == 2 && os.Args[1] == Argument }

// Run does the work of a launcher or a probe if a server has started this program as one, and
// then does not return. Otherwise it returns at once.
func Run() {
	installed = true
	switch {
	case isLauncher():
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
// passes the Spec, which names the helper and its arguments, to a helper. So arguments,
// environment and standard streams alone do not make a helper. Require closes the Spec.
func Require() {
	spec, err := readSpec()
	if err == nil && spec.Helper && slices.Equal(spec.Argv, os.Args) {
		_ = unix.Close(SpecFD)
		return
	}
	refuse()
}

// refuse ends a program that was called with the arguments of a helper, but not by a launcher.
func refuse() {
	_, _ = os.Stderr.WriteString("Error: only a server that starts itself in a sandbox may call " + os.Args[1] + "\n")
	syscall.Exit(exitFailed)
}

// exitFailed is the exit code of a launcher whose command did not start. Launchers call
// syscall.Exit: they have nothing to clean up, and the race detector would make os.Exit wait
// a second.
const exitFailed = 125

// launch does all the work of a launcher, on its main thread, which is confined and starts the
// command.
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
	if err := spec.dropPrivileges(); err != nil {
		fail(StageConfine, err.what, err.err)
	}
	// With the rights of the command: root's launcher could enter a directory that another user keeps
	// closed. From there the command would reach files that it could not reach itself, and a start that
	// succeeds would disclose which directories exist.
	if err := spec.enterDirectory(); err != nil {
		fail(StageDir, spec.Dir, err)
	}
	if spec.Exec {
		spec.execute(func(path string) error { return syscall.Exec(path, spec.Argv, spec.Env) })
	}
	spec.startAndWait()
}

// execute finds the program as execvp does and calls exec with its path, in the sandbox and with
// the rights of the command: a file that the sandbox does not show must neither be chosen nor
// change an error. Like execvp it continues where the kernel refuses to execute a file. It returns
// when exec has succeeded.
func (s *Spec) execute(exec func(path string) error) {
	list := execvp.DefaultPath
	for _, variable := range s.Env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			list = value
			break
		}
	}
	err := execvp.Find(s.Program, list, func(path string) (stop bool, err error) {
		if err := execvp.Check(path); err != nil {
			return false, err
		}
		if err = exec(path); err != nil && err != unix.EACCES {
			fail(StageExec, path, err)
		}
		return false, err
	})
	if err != nil {
		fail(StageFind, s.Program, err)
	}
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

// failure is an error with the attempted operation. nil is success.
type failure struct {
	what string
	err  error
}

// stage returns the Stage of a failure to confine files.
func (f *failure) stage() Stage {
	if f.err == errChanged {
		return StageChanged
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

// dropPrivileges takes from this thread, and from its children, everything that could undo the
// confinement. The other threads of the launcher lose their capabilities and get the same
// filter, so that taking one over gains nothing. Landlock does not apply to them: each would
// be confined by rules of its own, and none could forward signals to the command. A confined
// program cannot use them, because it can neither trace the launcher nor write its memory.
func (s *Spec) dropPrivileges() *failure {
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
	if err := s.limitSignals(); err != nil {
		return &failure{"limit the number of signals", err}
	}
	if !s.Exec {
		// This process, number 1 of its namespace, was started from outside. Its links in
		// /proc must not lead out.
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return &failure{"protect the launcher", err}
		}
	}
	if s.LandlockOnly {
		if err := seccomp.Install(seccomp.FilterShared()); err != nil {
			return &failure{"install the filter that protects other processes", err}
		}
	}
	return attempt("install the filter of system calls", seccomp.Install(seccomp.Filter(s.Network, !s.KeepRights)))
}

// limitDescriptors halves the limit of descriptors. The kernel counts the descriptors that a
// user's processes have sent through unix sockets and that are not yet received, and lets a
// process send none while there are more than its limit. So commands stop at half, and
// helpers, whose limit is unchanged, can always send the files that they open.
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

// reservedThreads is how many threads the launcher needs while a command runs.
const reservedThreads = 4

// A command gets 1/signalsShare of the pending signals, but at least minSignals.
const (
	signalsShare = 64
	minSignals   = 128
)

// limitSignals limits the pending signals and timers, which the kernel counts for each user. A
// launcher needs a signal for each of its threads to drop their capabilities, and fails if
// another command has used up the limit.
func (s *Spec) limitSignals() error {
	if s.Helper {
		return nil
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_SIGPENDING, &limit); err != nil {
		return err
	}
	limit.Max = min(limit.Max, max(limit.Max/signalsShare, minSignals))
	limit.Cur = min(limit.Cur, limit.Max)
	return unix.Setrlimit(unix.RLIMIT_SIGPENDING, &limit)
}

// dropCapabilities drops the capabilities of all threads, and the bounding and ambient sets of
// this one.
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

// startAndWait starts the command, and exits with its status.
func (s *Spec) startAndWait() {
	pidfd := -1
	files := []uintptr{0, 1, 2}
	if s.Helper {
		files = append(files, SpecFD)
	}
	signals := catchSignals()
	ReserveThreads(reservedThreads)
	var pid int
	s.execute(func(path string) (err error) {
		pid, err = syscall.ForkExec(path, s.Argv, &syscall.ProcAttr{
			Env:   s.Env,
			Files: files,
			Sys:   &syscall.SysProcAttr{Setsid: s.Session, Setctty: s.Terminal, PidFD: &pidfd},
		})
		return err
	})
	var fds []int
	if pidfd >= 0 {
		fds = append(fds, pidfd)
	}
	err := send([]byte{ReportStarted}, fds...)
	if err == unix.ETOOMANYREFS { // see limitDescriptors
		err = send([]byte{ReportStarted})
	}
	if err != nil {
		syscall.Exit(exitFailed) // the server has disconnected
	}
	if pidfd >= 0 {
		_ = unix.Close(pidfd)
	}
	for fd := range 3 {
		_ = unix.Close(fd) // they end when the command's processes close them
	}
	c := &command{pid: pid, group: s.Session}
	go c.obeyRequests()
	go c.forwardSignals(signals)
	status := c.wait()
	report := binary.LittleEndian.AppendUint32([]byte{ReportEnded}, uint32(status))
	_ = send(report) // otherwise the server sees the exit code
	if status.Signaled() {
		syscall.Exit(128 + int(status.Signal()))
	}
	syscall.Exit(status.ExitStatus())
}

// confineNetwork prepares the network of a command that must not use the machine's.
func (s *Spec) confineNetwork() *failure {
	if s.Network == seccomp.NetworkMachine {
		return nil
	}
	for fd := range 3 {
		if !ReachesPeerAlone(fd) {
			return &failure{"confine the network", errors.New("a stream of the command is a socket that can reach others than its peer")}
		}
	}
	if s.Network == seccomp.NetworkOwn && !s.Check { // bubblewrap has done it
		raiseLoopback()
	}
	return nil
}

// ReachesPeerAlone reports whether a descriptor is not a socket, or is a connected unix
// stream or seqpacket socket. Other sockets can be connected to another peer, and stay in the
// network namespace in which they were created.
func ReachesPeerAlone(fd int) bool {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return true
	}
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_UNIX {
		return false
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM && kind != unix.SOCK_SEQPACKET {
		return false
	}
	_, err = unix.Getpeername(fd)
	return err == nil
}

// raiseLoopback brings up the loopback interface of the command's network namespace. If the
// kernel refuses it, as in a container that allows namespaces but not their configuration, the
// namespace has no network at all.
func raiseLoopback() {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil || unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request) != nil {
		return
	}
	request.SetUint16(request.Uint16() | unix.IFF_UP)
	_ = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// limitInotify limits the command to half of the user's inotify instances and watches, so that
// other programs can still watch files. The limits apply only in the user namespace. They
// cannot be set in some containers.
func (s *Spec) limitInotify() {
	if !s.OwnUsers {
		return // the limits would apply to the whole machine
	}
	for _, name := range []string{"instances", "watches"} {
		var text [32]byte
		n, err := onFile("/proc/sys/fs/inotify/max_user_"+name, unix.O_RDONLY, func(fd int) (int, error) { return unix.Read(fd, text[:]) })
		if err != nil {
			continue
		}
		limit, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
		if err != nil {
			continue
		}
		half := strconv.Itoa(limit / 2)
		_, _ = onFile("/proc/sys/user/max_inotify_"+name, unix.O_WRONLY, func(fd int) (int, error) { return unix.Write(fd, []byte(half)) })
	}
}

func onFile(path string, mode int, do func(fd int) (int, error)) (int, error) {
	fd, err := unix.Open(path, mode|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return do(fd)
}
