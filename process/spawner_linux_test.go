package process_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/testkit"
	"execserver/process"
	"execserver/protocol"
)

// TestStartsAmongDescriptors: children are started by a thread without the
// program's descriptors, so that a start does not take the longer the more of
// them there are. The first thread keeps them, because it stands for the program.
func TestStartsAmongDescriptors(t *testing.T) {
	if !inFreshProgram(t, "GOMAXPROCS=1") { // so that the first thread is the nearest one
		return
	}
	files := startAmongFiles(t)
	if err := separateTable(); err != nil {
		t.Skipf("threads get no tables of their own here: %v", err)
	}
	tables := descriptorTables(t)
	if n := tables[fmt.Sprint(os.Getpid())]; n < files {
		t.Errorf("the first thread has %d descriptors, the program more than %d", n, files)
	}
	few := 0
	for _, n := range tables {
		if n < 10 {
			few++
		}
	}
	if few < 2 || few > 16 { // two, unless the machine was busy
		t.Errorf("descriptors by thread: %v; those that start processes should have few", tables)
	}
	startWhatWasJustWritten(t)
}

// separateTable gives a thread that ends a table of descriptors of its own.
func separateTable() error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with its table
		if unix.Gettid() == os.Getpid() {
			// The first thread never ends, and its table stands for the program. While
			// this goroutine keeps it, another one gets another.
			err := separateTable()
			runtime.UnlockOSThread()
			result <- err
			return
		}
		result <- unix.CloseRange(math.MaxUint32, math.MaxUint32, unix.CLOSE_RANGE_UNSHARE)
	}()
	return <-result
}

// startWhatWasJustWritten writes programs and starts them at once, all at the
// same time. The kernel executes no file that somebody may write, as a child that
// is being started would with a copy of the program's descriptors.
func startWhatWasJustWritten(t *testing.T) {
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
		if s := follow(t, start(t, spec, nil)); !slices.Equal(strings.Fields(s.all), want) {
			t.Errorf("limits of a child: %q, want %q", s.all, want)
		}
	}
}

// TestStartsWhereTablesAreShared is the same where the kernel grants a thread
// no table of descriptors of its own.
func TestStartsWhereTablesAreShared(t *testing.T) {
	refused(t, unix.SYS_CLOSE_RANGE, func(t *testing.T) {
		files := startAmongFiles(t)
		for thread, n := range descriptorTables(t) {
			if n < files {
				t.Errorf("thread %s has %d descriptors", thread, n)
			}
		}
	})
}

// TestStartsWithoutClone3 is the same where there is no clone3, as in many
// containers.
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
			testkit.WaitFor(t, testTimeout, func() (err error) {
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
			gone(t, pid)
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

// TestMarksOfOthers: with clone3 or without, a child without a mark gets none while
// others are marked, and neither does the program.
func TestMarksOfOthers(t *testing.T) {
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
	owner := newOwnership(t, &process.OwnershipOptions{Subreaper: true}).NewOwner()
	unmarked := process.Spec{Argv: []string{"/bin/grep", "file locks", "/proc/self/limits"}, Dir: "/"}
	want := follow(t, start(t, unmarked, nil)).all
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
					p, err := process.Start(unmarked, opts)
					if err != nil {
						t.Error(err)
						return
					}
					if got := follow(t, p).all; (got == want) != (opts == nil) {
						t.Errorf("clone3 refused: %v, marked: %v, limits: %q", refused, opts != nil, got)
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

// TestStartsWithoutProc is the same where a thread could have a table of its
// own, but not see what is in it.
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

// startAmongFiles starts processes of all kinds while many files are open, checks
// that they work and that no descriptor stays, and returns the number of files.
func startAmongFiles(t *testing.T) (files int) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	const pipes = 100
	for range pipes {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	}
	const starts = 40
	most := func() (most int) { // of the threads that have few
		for _, n := range descriptorTables(t) {
			if n < 2*pipes {
				most = max(most, n)
			}
		}
		return most
	}
	startOne(t, 0)
	before := most()
	var group sync.WaitGroup
	for i := range starts {
		group.Go(func() { startOne(t, i) })
	}
	group.Wait()
	if after := most(); after > before {
		t.Errorf("after %d starts, a thread that had %d descriptors has %d", starts, before, after)
	}
	// The thread has not kept what was open when it began.
	_ = writer.Close()
	testkit.Within(t, testTimeout, "the end of a pipe whose other end the program has closed", func() {
		if _, err := reader.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("reading a pipe whose other end is closed: %v", err)
		}
	})
	_ = reader.Close()
	return 2 * pipes
}

// startOne starts a process with a terminal or pipes, which must say what it was
// told, and have no descriptors but its streams.
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
	if status, _ := p.Write([]byte(line+"\n"), nil, nil, func(wait func()) { wait() }); status != protocol.WriteAccepted {
		t.Errorf("write: %v", status)
	}
	s := follow(t, p)
	if !strings.Contains(s.all, "got "+line) || s.code != 0 {
		t.Errorf("process %d: exit code %d, output %q", i, s.code, s.all)
	}
	if _, err := os.Stat("/proc/self"); err == nil && !strings.HasSuffix(s.all, "0 1 2 3 ") { // 3 is the directory
		t.Errorf("process %d has other descriptors than its streams: %q", i, s.all)
	}
}

// descriptorTables counts the descriptors of each thread; none without /proc.
func descriptorTables(t *testing.T) map[string]int {
	t.Helper()
	tables := map[string]int{}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return tables
	}
	for _, task := range tasks {
		fds, err := os.ReadDir("/proc/self/task/" + task.Name() + "/fd")
		if err == nil && len(fds) > 0 { // else the thread has ended
			tables[task.Name()] = len(fds)
		}
	}
	return tables
}
