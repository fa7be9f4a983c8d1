package process

import (
	"errors"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/fault"
	"execserver/internal/ownership"
	"execserver/internal/procfs"
	"execserver/internal/sandbox/launcher"
	"execserver/internal/sys"
)

// leaderHandle notifies of the leader's exit.
type leaderHandle struct {
	pidfd  *os.File    // in the runtime's poller; nil if the kernel has no pidfds
	thread *forkThread // that started the leader
}

// A start that fails for a transient reason is tried up to maxSpawns times.
const (
	maxSpawns  = 20
	spawnPause = 5 * time.Millisecond
)

// spawn starts a child as the leader of a session of its own.
func spawn(c command, t *ownership.Tree) (ours *child, err error) {
	for range maxSpawns {
		ours, err = spawnOnce(c, t)
		failure, ok := errors.AsType[*launcher.Failure](err)
		switch {
		case ok && failure.Stage == launcher.StageChanged: // a file was replaced while the sandbox was set up
		case errors.Is(err, syscall.ETXTBSY):
			// A child forked while this program had the file open for writing
			// keeps it open until its own exec.
			time.Sleep(spawnPause)
		default:
			return ours, err
		}
	}
	return ours, err
}

func spawnOnce(c command, t *ownership.Tree) (*child, error) {
	ours, childFiles, err := makeStreams(c.spec)
	defer ours.closeChildFiles(childFiles)
	if err != nil {
		ours.close()
		reason := "create its streams"
		if errors.Is(err, errWatchLimit) {
			reason += ", because this user has used up the epoll watches (sysctl fs.epoll.max_user_watches)"
		}
		return nil, &Error{Program: c.spec.Argv[0], Reason: reason, Err: errnoOf(err)}
	}
	path, argv := c.path, c.argv
	attr := &syscall.ProcAttr{
		Dir: c.dir,
		Env: c.env,
		Sys: &syscall.SysProcAttr{
			Setsid:    true,
			Setctty:   c.spec.TTY, // of descriptor 0
			Pdeathsig: syscall.SIGTERM,
		},
	}
	group, err := t.OpenGroup()
	if err != nil {
		ours.close()
		return nil, &Error{Program: c.spec.Argv[0], Reason: "open its control group", Err: errnoOf(err)}
	}
	if group != nil {
		defer group.Close()
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(group.Fd())
	}
	var files []*os.File
	if c.spec.Sandbox != nil {
		if files, err = ours.confine(c, attr, &path, &argv); err != nil {
			ours.close()
			return nil, err
		}
	}
	for _, f := range append(childFiles, files...) {
		attr.Files = append(attr.Files, f.Fd())
	}
	if dir := c.spec.DirFile; dir != nil && ours.launch == nil { // a launcher changes directory itself
		attr.Dir = "/proc/self/fd/" + strconv.Itoa(int(dir.Fd()))
		defer runtime.KeepAlive(dir)
	}
	running := false
	defer func() {
		if ours.pid != 0 && !running { // also after a panic
			ours.discard()
		}
	}()
	err = func() error {
		defer prefault(path, attr.Dir)()
		err := forkExec(ours, path, argv, attr, t)
		ours.group = ours.pid
		return err
	}()
	runtime.KeepAlive(files) // childFiles are kept alive by their deferred close
	if err != nil {
		err = ours.startError(c, err)
		ours.releaseSandbox()
		ours.close()
		return nil, err
	}
	t.RestoreOOMScore(ours.pid) // before a launcher starts the program
	if ours.launch != nil {
		if err := ours.waitStarted(c); err != nil { // it has discarded the child
			return nil, err
		}
	}
	if pidfd, err := sys.PidfdOpen(ours.pid, 0); err == nil {
		// Only a non-blocking descriptor gets into the poller.
		_ = sys.SetNonblock(pidfd, true)
		ours.handle.pidfd = sys.NewFile(uintptr(pidfd), "pidfd")
	}
	running = true
	return ours, nil
}

// forkExec starts the leader of a tree on a fork thread. Only what must happen there does: a
// start holds one of a few threads, and a panic on them would end the program.
func forkExec(c *child, path string, argv []string, attr *syscall.ProcAttr, t *ownership.Tree) (err error) {
	if err := fault.At("fork"); err != nil {
		return err
	}
	done := make(chan struct{})
	forkCalls() <- func(s *forkThread) {
		defer close(done)
		t.Fork(func() { err = s.forkExec(c, path, argv, attr) })
	}
	<-done
	return err
}

// discard kills and reaps a child whose life cycle has not begun, and frees its resources. It
// returns how the child ended.
func (c *child) discard() (status syscall.WaitStatus) {
	_ = sys.Kill(-c.pid, syscall.SIGKILL) // it may have ended
	for {
		if _, err := sys.Wait4(c.pid, &status, 0, nil); err != syscall.EINTR {
			break
		}
	}
	c.handle.thread.forget(c)
	c.releaseSandbox()
	c.close()
	c.pid = 0
	return status
}

// inputPipe makes a pipe to a child, which reads from r.
func inputPipe() (r, w *os.File, err error) { return makePipe(1) }

// outputPipe makes a pipe from a child, which writes to w.
func outputPipe() (r, w *os.File, err error) { return makePipe(0) }

// makePipe makes a pipe of which only the parent's end is in the poller. The child's end
// blocks, as programs expect. os.Pipe would put both ends into the poller, and passing one
// to the child would set it back to blocking.
func makePipe(our int) (r, w *os.File, err error) {
	var ends [2]int
	if err := sys.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if err := sys.SetNonblock(ends[our], true); err != nil {
		_, _ = sys.Close(ends[0]), sys.Close(ends[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	r, w = sys.NewFile(uintptr(ends[0]), "|0"), sys.NewFile(uintptr(ends[1]), "|1")
	if err := checkPollable([]*os.File{r, w}[our]); err != nil {
		_, _ = r.Close(), w.Close()
		return nil, nil, err
	}
	return r, w, nil
}

// errWatchLimit reports that this user has reached the kernel's limit of epoll watches.
var errWatchLimit = os.NewSyscallError("epoll_ctl", syscall.ENOSPC)

// checkPollable returns an error if a file is not in the poller. Package os does not report
// that, and reads could not wait for output.
func checkPollable(f *os.File) error {
	if f.SetDeadline(time.Time{}) != nil {
		return errWatchLimit
	}
	return nil
}

// openNull opens /dev/null for reading, outside the poller.
func openNull() (*os.File, error) {
	fd, err := sys.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: os.DevNull, Err: err}
	}
	return sys.NewFile(uintptr(fd), os.DevNull), nil
}

// A forkThread is a thread that starts leaders and never exits: the kernel sends a child
// its parent-death signal when the thread that forked it exits, not the process.
type forkThread struct {
	childEnded chan struct{} // requests a call of reapStrays
	inherited  map[int]bool  // earlier children of the thread, which other code waits for

	mu      sync.Mutex
	leaders map[int]*child // unreaped leaders started by the thread, by pid
}

// forkThreadCount is the number of concurrent starts: half of GOMAXPROCS. The Go runtime
// counts a thread in ForkExec as running Go code until the exec has succeeded, which takes
// long when many programs are being loaded. The other half keeps serving everything else.
//
// A program on a file system that hangs would block its thread, and with it the whole
// program at the next garbage collection. Therefore prepare checks the program and its
// directory, and prefault reads what the kernel will read, in system calls that delay only
// this start. A file system that hangs between prefault and the exec still blocks the
// program.
func forkThreadCount() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// forkCalls returns the channel from which the fork threads take calls.
var forkCalls = sync.OnceValue(func() chan<- func(*forkThread) {
	calls := make(chan func(*forkThread))
	var all []*forkThread
	for range forkThreadCount() {
		s := &forkThread{childEnded: make(chan struct{}, 1), leaders: make(map[int]*child)}
		all = append(all, s)
		go s.run(calls)
	}
	go watchStrays(all)
	return calls
})

func (ft *forkThread) run(calls <-chan func(*forkThread)) {
	ft.lockThread()
	for {
		select {
		case call := <-calls:
			call(ft)
		case <-ft.childEnded:
			ft.reapStrays()
		}
	}
}

// lockThread locks the goroutine to its thread for good. Earlier children of the thread are
// not strays.
func (ft *forkThread) lockThread() {
	runtime.LockOSThread()
	ft.inherited = make(map[int]bool)
	for _, pid := range threadChildren() {
		ft.inherited[pid] = true
	}
}

// forkExec is syscall.ForkExec for the leader of a tree. It runs on the fork thread.
func (ft *forkThread) forkExec(c *child, path string, argv []string, attr *syscall.ProcAttr) (err error) {
	if c.pid, err = syscall.ForkExec(path, argv, attr); err != nil {
		return err
	}
	ft.mu.Lock()
	defer ft.mu.Unlock()
	ft.leaders[c.pid], c.handle.thread = c, ft
	return nil
}

// forget records that the leader has been reaped, so that its pid may be reused.
func (ft *forkThread) forget(c *child) {
	ft.mu.Lock()
	defer ft.mu.Unlock()
	if ft.leaders[c.pid] == c {
		delete(ft.leaders, c.pid)
	}
}

// A stray is a child of a fork thread that a leader made with CLONE_PARENT; nothing else
// waits for it. Because reapStrays reads the list of all children, it runs at most once
// every strayDelay.
const strayDelay = time.Second

// watchStrays requests reapStrays after children have exited. It never returns.
func watchStrays(all []*forkThread) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for range ended {
		time.Sleep(strayDelay)
		for _, s := range all {
			select {
			case s.childEnded <- struct{}{}:
			default: // already requested
			}
		}
	}
}

// reapStrays reaps the strays that have exited. It must run on the fork thread, the only
// one that has these children and adds leaders to them.
func (ft *forkThread) reapStrays() {
	if procfs.CheckNamespace() != nil {
		return // the list has the pids of another namespace
	}
	children := threadChildren()
	for _, pid := range children {
		if !ft.isLeader(pid) && !ft.inherited[pid] {
			_, _ = sys.Wait4(pid, nil, unix.WNOHANG|unix.WALL|unix.WNOTHREAD, nil)
		}
	}
	maps.DeleteFunc(ft.inherited, func(pid int, _ bool) bool { return !slices.Contains(children, pid) })
}

// threadChildren returns the children of the calling thread. Some kernels do not list them;
// then it returns none.
func threadChildren() (pids []int) {
	list, _ := sys.ReadFile("/proc/thread-self/children")
	for word := range strings.FieldsSeq(string(list)) {
		if pid, err := strconv.Atoi(word); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (ft *forkThread) isLeader(pid int) bool {
	ft.mu.Lock()
	defer ft.mu.Unlock()
	return ft.leaders[pid] != nil
}

const ioctlReadable = unix.TIOCINQ
