package process_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/procfs"
	"execserver/internal/seccomp"
	"execserver/internal/testkit"
	"execserver/internal/testkit/processtest"
	"execserver/protocol"
)

// TestStartsWhatWasJustWritten writes programs and starts them at once, all at the same
// time. The kernel does not execute a file that a process has open for writing, as does a
// child that has inherited this program's descriptors before its exec.
func TestStartsWhatWasJustWritten(t *testing.T) {
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 20 {
				path := fmt.Sprintf("%s/%d-%d", dir, i, j)
				if err := os.WriteFile(path, program, 0o700); err != nil {
					t.Error(err)
					return
				}
				p, err := process.Start(process.Spec{Argv: []string{path}, Dir: "/"}, nil)
				if err != nil {
					t.Error(err)
					return
				}
				<-p.Closed()
				p.Release()
			}
		})
	}
	group.Wait()
}

// TestOutlivesTheThreadThatStartedIt: the kernel sends a process its parent-death signal
// when the thread that forked it exits. So that thread must never exit.
func TestOutlivesTheThreadThatStartedIt(t *testing.T) {
	spec := shell("trap 'echo terminated; exit 1' TERM; echo ready; read line; echo $line")
	spec.PipeStdin = true
	var p *process.Process
	thread := onThreadThatEnds(func() { p = start(t, spec, nil) })
	testkit.WaitFor(t, testkit.Patience, func() error {
		if _, err := os.Stat(fmt.Sprint("/proc/self/task/", thread)); err == nil {
			return errors.New("the thread has not ended yet")
		}
		return nil
	})
	if status, _, _ := p.Write([]byte("alive\n"), nil, nil, func(wait func()) { wait() }); status != protocol.WriteAccepted {
		t.Errorf("write: %v", status)
	}
	if s := follow(t, p); s.Exit.ExitCode != 0 || !strings.Contains(s.All, "alive") {
		t.Errorf("exit code %d, output %q", s.Exit.ExitCode, s.All)
	}
}

// onThreadThatEnds calls f on a thread that ends then, and returns its id.
func onThreadThatEnds(f func()) (thread int) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		if thread = unix.Gettid(); thread == os.Getpid() {
			// The first thread never ends. While this goroutine keeps it, another one
			// gets another.
			thread = onThreadThatEnds(f)
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
	return thread
}

// TestStartsWithTheLimitOfFiles: children have the program's limit of open files,
// which the Go runtime raises for the program alone.
func TestStartsWithTheLimitOfFiles(t *testing.T) {
	const mark, limit = "EXEC_SERVER_TEST_LIMIT", "487"
	if os.Getenv(mark) == "" {
		cmd := exec.Command("/bin/sh", "-c", "ulimit -S -n "+limit+` && exec "$0" "$@"`, os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), mark+"=1")
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, output)
		}
		return
	}
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil || own.Cur < own.Max-1 {
		t.Fatalf("the program's own limit: %+v %v", own, err)
	}
	for _, tty := range []bool{false, true} {
		spec := shell("ulimit -S -n; ulimit -H -n")
		spec.Dir, spec.TTY = "/", tty
		want := strings.Fields(fmt.Sprint(limit, " ", own.Max))
		if s := follow(t, start(t, spec, nil)); !slices.Equal(strings.Fields(s.All), want) {
			t.Errorf("limits of a child: %q, want %q", s.All, want)
		}
	}
}

// TestStartsWithoutClone3: processes start without clone3, as in many containers.
func TestStartsWithoutClone3(t *testing.T) {
	refused(t, unix.SYS_CLONE3, func(t *testing.T) { startAmongFiles(t) })
}

// TestKillsWithoutPidfds: what has left its leader's group is killed with it although
// the kernel gives no descriptors of processes, or refuses to signal a group.
func TestKillsWithoutPidfds(t *testing.T) {
	for _, call := range []uint32{unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_KILL} {
		refused(t, call, func(t *testing.T) {
			p := start(t, shell("setsid sleep 600 >/dev/null 2>&1 & echo $!; wait"), nil)
			var pid int
			testkit.WaitFor(t, testkit.Patience, func() (err error) {
				r := p.Log.Read(0, nil)
				if len(r.Chunks) == 0 {
					return errors.New("no output yet")
				}
				pid, err = strconv.Atoi(strings.TrimSpace(string(r.Chunks[0].Data)))
				if st, _ := procfs.ReadStat(pid); err == nil && st.Session != pid {
					err = errors.New("not in a session of its own yet")
				}
				return err
			})
			p.Terminate()
			follow(t, p)
			testkit.Gone(t, pid)
		})
	}
}

// refused runs a test where containers refuse a system call, by either errno that
// they use.
func refused(t *testing.T, call uint32, test func(t *testing.T)) {
	for _, errno := range []unix.Errno{unix.ENOSYS, unix.EPERM} {
		t.Run(errno.Error(), func(t *testing.T) {
			if testkit.ThreadsNeed(call, errno) {
				t.Skip("this test program makes no threads without it")
			}
			if inFreshProgram(t, "EXEC_SERVER_TEST=1") {
				refuse(t, call, errno)
				test(t)
			}
		})
	}
}

// TestTagsOfOthers: with clone3 or without, a child without a tag gets none while
// others are tagged, and neither does the program.
func TestTagsOfOthers(t *testing.T) {
	if !inFreshProgram(t, "EXEC_SERVER_TEST=1") {
		return
	}
	const rlimitLocks = 10
	limit := func() (limit unix.Rlimit) {
		if err := unix.Prlimit(0, rlimitLocks, nil, &limit); err != nil {
			t.Fatal(err)
		}
		return limit
	}
	before := limit()
	owner := processtest.Ownership(t, &ownership.Options{Subreaper: true}).NewOwner()
	untagged := process.Spec{Argv: []string{"/bin/grep", "file locks", "/proc/self/limits"}, Dir: "/"}
	want := follow(t, start(t, untagged, nil)).All
	for _, refused := range []bool{false, true} {
		if refused {
			refuse(t, unix.SYS_CLONE3, unix.ENOSYS)
		}
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() {
				var opts *process.Options
				if i%2 == 0 {
					opts = &process.Options{Owner: owner, Name: "p"}
				}
				for range 10 {
					p, err := process.Start(untagged, opts)
					if err != nil {
						t.Error(err)
						return
					}
					if got := follow(t, p).All; (got == want) != (opts == nil) {
						t.Errorf("clone3 refused: %v, tagged: %v, limits: %q", refused, opts != nil, got)
					}
					p.Release()
				}
			})
		}
		group.Wait()
		if after := limit(); after != before {
			t.Errorf("clone3 refused: %v, limit of the program: %x, before %x", refused, after, before)
		}
	}
}

// refuse keeps this program from making a system call.
func refuse(t *testing.T, call uint32, errno unix.Errno) {
	t.Helper()
	if err := testkit.Refuse(call, errno); err != nil {
		t.Skipf("no filter of system calls: %v", err)
	}
}

// TestStartsWithoutProc: processes start without /proc.
func TestStartsWithoutProc(t *testing.T) {
	if !testkit.InMountNamespace(t) {
		return
	}
	if err := unix.Mount("none", "/proc", "tmpfs", 0, ""); err != nil {
		t.Skipf("cannot hide /proc: %v", err)
	}
	startAmongFiles(t)
}

// inFreshProgram runs the calling test once more, in a program that has not
// started anything yet, and reports whether this is that program.
func inFreshProgram(t *testing.T, variable string) bool {
	t.Helper()
	const mark = "EXEC_SERVER_TEST_FRESH"
	if os.Getenv(mark) == t.Name() {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mark+"="+t.Name(), variable)
	output, err := cmd.CombinedOutput()
	t.Logf("in a program of its own:\n%s", output)
	switch {
	case err != nil:
		t.Error(err)
	case strings.Contains(string(output), "--- SKIP"):
		t.Skip("see above")
	}
	return false
}

// TestStartsLeaveAProcessor: of two processors, many starts leave one to everything
// else. A child that runs this program's code still has the thread that made it.
func TestStartsLeaveAProcessor(t *testing.T) {
	if !inFreshProgram(t, "GOMAXPROCS=2") {
		return
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 25 {
				p, err := process.Start(process.Spec{Argv: []string{"/bin/true"}, Dir: "/"}, nil)
				if err != nil {
					t.Error(err)
					return
				}
				<-p.Closed()
				p.Release()
			}
		})
	}
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	for seen := 0; ; {
		select {
		case <-done:
			if seen == 0 {
				t.Error("no child was seen that had yet to execute its program")
			}
			return
		default:
		}
		loading := childrenThatRun(self)
		seen = max(seen, loading)
		if loading > 1 {
			t.Fatalf("%d children keep the threads that made them", loading)
		}
	}
}

// childrenThatRun counts the children of this program that run a program.
func childrenThatRun(program string) (n int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		pids, _ := os.ReadFile(list)
		for _, pid := range strings.Fields(string(pids)) {
			if exe, err := os.Readlink("/proc/" + pid + "/exe"); err == nil && exe == program {
				n++
			}
		}
	}
	return n
}

// startAmongFiles starts processes of all kinds while many files are open, and
// checks that they work and that none keeps a file of this program.
func startAmongFiles(t *testing.T) {
	t.Helper()
	for range 100 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	}
	var group sync.WaitGroup
	for i := range 40 {
		group.Go(func() { startOne(t, i) })
	}
	group.Wait()
}

// startOne starts a process with a terminal or pipes. It must echo its argument, and have
// no descriptors but its streams.
func startOne(t *testing.T, i int) {
	spec := shell("read line; echo got $line; ls /dev/fd/ 2>&1 | tr '\\n' ' '")
	spec.Dir, spec.PipeStdin, spec.TTY = "/", true, i%2 == 0
	p, err := process.Start(spec, nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer p.Release()
	line := fmt.Sprint("line", i)
	if status, _, _ := p.Write([]byte(line+"\n"), nil, nil, func(wait func()) { wait() }); status != protocol.WriteAccepted {
		t.Errorf("write: %v", status)
	}
	s := follow(t, p)
	if !strings.Contains(s.All, "got "+line) || s.Exit.ExitCode != 0 {
		t.Errorf("process %d: exit code %d, output %q", i, s.Exit.ExitCode, s.All)
	}
	if _, err := os.Stat("/proc/self"); err == nil && !strings.HasSuffix(s.All, "0 1 2 3 ") { // 3 is the directory
		t.Errorf("process %d has other descriptors than its streams: %q", i, s.All)
	}
}

// TestStartInForbiddenDirectory checks that the error names the directory that the server may
// not enter, and not only the program, which it may execute.
func TestStartInForbiddenDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o600); err != nil {
		t.Fatal(err)
	}
	// Root may enter every directory. A thread with another uid ends with the
	// goroutine.
	failed := make(chan error)
	go func() {
		if os.Geteuid() == 0 {
			runtime.LockOSThread()
			const same, nobody = ^uintptr(0), 65534
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, nobody, same); errno != 0 {
				failed <- errno
				return
			}
			dir = "/root" // those above the other one are root's, too
		}
		p, err := process.Start(process.Spec{Argv: []string{"/bin/true"}, Dir: dir}, nil)
		if err == nil {
			p.Release()
		}
		failed <- err
	}()
	err := <-failed
	want := `cannot start "/bin/true": working directory "` + dir + `": permission denied (os error 13)`
	if !errors.Is(err, syscall.EACCES) || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func init() {
	if len(os.Args) == 2 && os.Args[1] == "unwatched" {
		unwatched()
		os.Exit(0)
	}
}

// unwatched starts processes when this program has used up its epoll watches. It prints why
// each did not start.
func unwatched() {
	p, err := process.Start(process.Spec{Argv: []string{"/bin/echo", "lost"}, Dir: "/"}, nil)
	if err != nil {
		fmt.Println("before:", err)
		return
	}
	<-p.Closed()
	const load, equal, ret, noSpace, allow = 0x20, 0x15, 0x06, 0x00050000 | uint32(unix.ENOSPC), 0x7fff0000
	err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err == nil {
		err = seccomp.Install([]seccomp.Instruction{
			{Op: load}, {Op: equal, Jf: 1, K: unix.SYS_EPOLL_CTL}, {Op: ret, K: noSpace}, {Op: ret, K: allow},
		})
	}
	if err != nil {
		fmt.Println("filter:", err)
		return
	}
	for _, spec := range []process.Spec{{}, {PipeStdin: true}, {TTY: true}} {
		spec.Argv, spec.Dir = []string{"/bin/echo", "lost"}, "/"
		_, err := process.Start(spec, nil)
		fmt.Println(err)
	}
}

// TestNoMoreWatches starts processes after one program has used up the epoll watches of the
// user. They do not start, because nothing could wait for their output.
func TestNoMoreWatches(t *testing.T) {
	t.Parallel()
	if !seccomp.Supported {
		t.Skip("seccomp is not supported on", runtime.GOARCH)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	output, err := exec.Command(self, "unwatched").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	if len(lines) != 3 {
		t.Fatalf("%s", output)
	}
	for _, line := range lines {
		if !strings.Contains(line, "this user has used up the epoll watches (sysctl fs.epoll.max_user_watches): no space left on device") {
			t.Error(line)
		}
	}
}

// TestStreamsBlock: a program expects streams that block, whatever this program needs at
// the other ends.
func TestStreamsBlock(t *testing.T) {
	for _, input := range []bool{false, true} {
		spec := shell("exec sleep 1000")
		spec.PipeStdin = input
		p := start(t, spec, nil)
		for fd := range 3 {
			var text []byte
			testkit.WaitFor(t, testkit.Patience, func() (err error) {
				text, err = os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", p.Describe().Pid, fd))
				return err
			})
			_, rest, _ := strings.Cut(string(text), "flags:")
			flags, err := strconv.ParseInt(strings.Fields(rest)[0], 8, 64)
			if err != nil || flags&unix.O_NONBLOCK != 0 {
				t.Errorf("stdin a pipe: %v: flags of descriptor %d: %#o %v", input, fd, flags, err)
			}
		}
		p.Kill()
		<-p.Closed()
	}
}

// TestReapsStrays: with CLONE_PARENT, a command makes children of the server. When they
// exit, they must not stay zombies until the server ends, and reaping them must not take
// the status of a child that other code waits for.
func TestReapsStrays(t *testing.T) {
	other := exec.Command("/bin/sh", "-c", "exit 7")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	spec := child("strays", "20")
	spec.PipeStdin = true
	p := start(t, spec, nil)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if p.Log.LastSeq() == 0 {
			return errors.New("no output yet")
		}
		if children := testkit.Children(os.Getpid()); len(children) > 2 { // other and p's leader
			return fmt.Errorf("children %d; the zombies among them:\n%s", children, strings.Join(testkit.Zombies(t), ""))
		}
		return nil
	})
	if err := p.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	if s := follow(t, p); s.Exit.ExitCode != 0 || !strings.Contains(s.All, "started 20 <nil>") {
		t.Errorf("exit code %d, output %q", s.Exit.ExitCode, s.All)
	}
	if _ = other.Wait(); other.ProcessState.ExitCode() != 7 {
		t.Errorf("a command that the server did not start: %v", other.ProcessState)
	}
}
