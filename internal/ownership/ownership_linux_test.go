package ownership_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/testkit"
	"execserver/internal/testkit/owning"
	"execserver/internal/testkit/processtest"
	"execserver/protocol"
)

// TestMechanisms runs TestOwned for each of the mechanisms.
func TestMechanisms(t *testing.T) { owning.Together(t, "TestOwned") }

func TestOwned(t *testing.T) {
	if owning.Mechanism() == "" {
		t.Skip("TestMechanisms runs it, in programs of their own")
	}
	o, _ := owning.New(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *ownership.Ownership)
	}{
		{"Terminate", ownedTerminate},
		{"TerminateHeldByAnother", ownedTerminateOne},
		{"End", ownedEnd},
		{"EndWithoutDescriptors", ownedEndWithoutDescriptors},
		{"LookWithoutDescriptors", ownedLookWithoutDescriptors},
		{"ForgetWithoutDescriptors", ownedForgetWithoutDescriptors},
		{"Background", ownedBackground},
		{"Forget", ownedForget},
		{"Undying", ownedUndying},
		{"NextSession", ownedNextSession},
		{"Statuses", ownedStatuses},
		{"Memory", ownedMemory},
		{"Pids", ownedPids},
		{"CPUs", ownedCPUs},
	} {
		before := testkit.Descriptors(t)
		t.Run(test.name, func(t *testing.T) { test.run(t, o) })
		testkit.WaitFor(t, testkit.Patience, func() error {
			if zombies := testkit.Zombies(t); len(zombies) > 0 {
				return fmt.Errorf("%s: zombies: %s", test.name, zombies)
			}
			if after := testkit.Descriptors(t); after > before+2 { // the poller's
				return fmt.Errorf("%s: %d descriptors, %d before", test.name, after, before)
			}
			return nil
		})
	}
}

// newWord is a word that no other process has in its command line.
func newWord() string { return fmt.Sprintf("tree-%x", rand.Uint64()) }

// run starts a process of an owner and waits for its first output.
func run(t *testing.T, w *ownership.Owner, name string, args ...string) (p *process.Process, output string) {
	t.Helper()
	p = processtest.Start(t, processtest.Child(name, args...), &process.Options{Owner: w, Name: name})
	testkit.WaitFor(t, testkit.Patience, func() error {
		r := p.Log.Read(0, nil)
		if len(r.Chunks) == 0 {
			return errors.New("no output yet")
		}
		output = strings.TrimSpace(string(r.Chunks[0].Data))
		return nil
	})
	return p, output
}

// daemon starts a process that makes a daemon.
func daemon(t *testing.T, w *ownership.Owner, args ...string) (p *process.Process, pid int) {
	t.Helper()
	p = processtest.Start(t, processtest.Child("daemon", args...), &process.Options{Owner: w, Name: "daemon"})
	return p, processtest.FirstPid(t, p)
}

// ownedTerminate: whatever a process has done, nothing is left when it has been
// terminated and is closed; and nothing of its neighbours is missing.
func ownedTerminate(t *testing.T, o *ownership.Ownership) {
	mine, other := processtest.Owner(t, o), processtest.Owner(t, o)
	_, daemonOfRunning := daemon(t, mine, newWord(), "stay")
	closed, daemonOfClosed := daemon(t, mine, newWord())
	processtest.Follow(t, closed)
	_, daemonOfOther := daemon(t, other, newWord(), "stay")
	for range 5 {
		word := newWord()
		p, _ := run(t, mine, "hostile", word)
		if n := len(testkit.WithWord(t, word)); n < 8 {
			t.Fatalf("the tree has %d processes only", n)
		}
		before := time.Now()
		p.Terminate()
		processtest.Follow(t, p)
		took := time.Since(before)
		if alive := testkit.WithWord(t, word); len(alive) > 0 {
			t.Errorf("closed, but alive: %s", alive)
		}
		testkit.NoneWithWord(t, word)
		t.Logf("the hostile tree is gone and closed after %v", took)
	}
	for name, pid := range map[string]int{
		"a running process": daemonOfRunning, "a closed process": daemonOfClosed, "another session": daemonOfOther,
	} {
		if !testkit.Alive(pid) {
			t.Errorf("the daemon of %s is gone", name)
		}
	}
}

// ownedTerminateOne: of two processes that are alike, the right one loses its
// daemon.
func ownedTerminateOne(t *testing.T, o *ownership.Ownership) {
	w := processtest.Owner(t, o)
	var procs []*process.Process
	var pids []int
	for range 6 {
		p, pid := daemon(t, w, newWord(), "stay")
		procs, pids = append(procs, p), append(pids, pid)
	}
	for i, p := range procs {
		p.Terminate()
		processtest.Follow(t, p)
		for j, pid := range pids {
			if j <= i {
				testkit.Gone(t, pid)
			} else if !testkit.Alive(pid) {
				t.Errorf("terminated 0 to %d; the daemon of %d is gone", i, j)
			}
		}
	}
}

// ownedEnd: the end of an owner is the end of everything, of what closed
// processes have left as well.
func ownedEnd(t *testing.T, o *ownership.Ownership) {
	mine, other := processtest.Owner(t, o), processtest.Owner(t, o)
	word := newWord()
	p, _ := run(t, mine, "hostile", word)
	closed, _ := daemon(t, mine, word)
	processtest.Follow(t, closed)
	_, daemonOfOther := daemon(t, other, newWord(), "stay")
	before := time.Now()
	mine.End(protocol.EndedBySessionExpired)
	p.Abandon()
	mine.Wait()
	took := time.Since(before)
	if alive := testkit.WithWord(t, word); len(alive) > 0 {
		t.Errorf("alive: %s", alive)
	}
	t.Logf("everything is gone after %v", took)
	if s := processtest.Follow(t, p); s.Exit.EndedBy != protocol.EndedBySessionExpired {
		t.Errorf("ended by %q", s.Exit.EndedBy)
	}
	if !testkit.Alive(daemonOfOther) {
		t.Error("the daemon of another session is gone")
	}
	if _, err := process.Start(processtest.Shell("true"), &process.Options{Owner: mine}); err == nil {
		t.Error("a process was started for an owner that has ended")
	}
}

// ownedEndWithoutDescriptors: a process that cannot be examined for lack of descriptors is
// not taken for gone.
func ownedEndWithoutDescriptors(t *testing.T, o *ownership.Ownership) {
	w := processtest.Owner(t, o)
	p, pid := daemon(t, w, newWord())
	processtest.Follow(t, p)
	restore := noDescriptors(t)
	ended := endsNotWithin(t, w, 100*time.Millisecond, "nobody could look for what it has left")
	restore()
	testkit.Within(t, "the end of the session", func() { <-ended })
	testkit.Gone(t, pid)
}

// noDescriptors uses up this program's descriptors until the caller calls restore.
func noDescriptors(t *testing.T) (restore func()) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	set := func(limit unix.Rlimit) {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}
	set(unix.Rlimit{Cur: 0, Max: limit.Max})
	return func() { set(limit) }
}

// ownedLookWithoutDescriptors: without descriptors no session is reported to have left
// nothing running, and no background process to have ended.
func ownedLookWithoutDescriptors(t *testing.T, o *ownership.Ownership) {
	w := processtest.Owner(t, o)
	p, pid := daemon(t, w, newWord())
	processtest.Follow(t, p)
	id := left(t, w, pid)
	restore := noDescriptors(t)
	running := o.HasBackground([]*ownership.Owner{w})[w]
	err := w.SignalBackground(id, syscall.SIGKILL)
	restore()
	if !running {
		t.Error("HasBackground has found nothing, and could not look")
	}
	if unknown := (*ownership.UnknownBackgroundError)(nil); err == nil || errors.As(err, &unknown) {
		t.Errorf("SignalBackground, which could not look: %v", err)
	}
	if !testkit.Alive(pid) {
		t.Error("SignalBackground has killed the process, which it could not look at")
	}
}

// ownedForgetWithoutDescriptors: an owner does not forget closed processes that it could not
// look for.
func ownedForgetWithoutDescriptors(t *testing.T, o *ownership.Ownership) {
	const forgetAt = 5
	w := processtest.Owner(t, o)
	ownership.PruneAt(w, forgetAt)
	p, pid := daemon(t, w, newWord())
	processtest.Follow(t, p)
	var others []*process.Process
	for range forgetAt {
		others = append(others, processtest.Start(t, processtest.Child("idle"), &process.Options{Owner: w}))
	}
	restore := noDescriptors(t)
	for _, p := range others {
		_ = p.Signal(syscall.SIGKILL)
		<-p.Closed()
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if ownership.Pruning(w) {
			return errors.New("the owner still looks for what it may forget")
		}
		return nil
	})
	restore()
	if list := w.Background(); len(list) != 1 || list[0].Pid != pid || list[0].Name != "daemon" {
		t.Errorf("Background is %+v, want the daemon %d", list, pid)
	}
}

// ownedBackground: what a closed process has left running is listed, and can be
// ended one by one.
func ownedBackground(t *testing.T, o *ownership.Ownership) {
	mine, other := processtest.Owner(t, o), processtest.Owner(t, o)
	word := newWord()
	p, pid := daemon(t, mine, word)
	running, _ := daemon(t, mine, newWord(), "stay")
	processtest.Follow(t, p)
	p.Terminate()
	// In the group of its leader, as a shell leaves it.
	s := processtest.Follow(t, processtest.Start(t, processtest.Shell(`sleep 1000 </dev/null >/dev/null 2>&1 & echo $!`), &process.Options{Owner: mine, Name: "shell"}))
	sleeper, err := strconv.Atoi(strings.TrimSpace(s.All))
	if err != nil {
		t.Fatal(err)
	}

	listed := make(map[int]ownership.Background)
	testkit.WaitFor(t, testkit.Patience, func() error { // the shell may have forked and not executed it yet
		for _, b := range mine.Background() {
			listed[b.Pid] = b
		}
		if b := listed[sleeper]; b.Name != "shell" || len(b.Argv) != 2 || b.Argv[1] != "1000" {
			return fmt.Errorf("the sleeper is listed as %+v", b)
		}
		return nil
	})
	self, _ := os.Executable()
	if b := listed[pid]; len(listed) != 2 || b.Name != "daemon" || b.Parent == 0 || len(b.Argv) != 3 || b.Argv[0] != self || b.Argv[1] != word {
		t.Errorf("Background is %+v, want %d and %d", listed, pid, sleeper)
	}
	if list := other.Background(); len(list) != 0 {
		t.Errorf("another owner has %+v", list)
	}

	var unknown *ownership.UnknownBackgroundError
	stat := fmt.Sprintf("bg-%d-1", pid) // started at another time: another process
	for _, id := range []string{"", "bg-", "bg-1-1", "bg--1-1", stat, "bg-" + strconv.Itoa(os.Getpid()) + "-0", listed[pid].ID + "x"} {
		if err := mine.SignalBackground(id, syscall.SIGKILL); !errors.As(err, &unknown) {
			t.Errorf("SignalBackground(%q): %v", id, err)
		}
	}
	if err := other.SignalBackground(listed[pid].ID, syscall.SIGKILL); !errors.As(err, &unknown) {
		t.Errorf("another owner's SignalBackground: %v", err)
	}
	if !testkit.Alive(pid) || !testkit.Alive(sleeper) || running.Exited() {
		t.Fatal("something is gone that was not meant")
	}
	if err := mine.SignalBackground(listed[pid].ID, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	testkit.Gone(t, pid)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if list := mine.Background(); len(list) != 1 || list[0].Pid != sleeper {
			return fmt.Errorf("Background is %+v, want %d alone", list, sleeper)
		}
		return nil
	})
	if err := mine.SignalBackground(listed[pid].ID, syscall.SIGTERM); !errors.As(err, &unknown) {
		t.Errorf("SignalBackground of what has ended: %v", err)
	}
}

// ownedForget: many processes that leave nothing, and one that
// does, do not make the owner forget that one.
func ownedForget(t *testing.T, o *ownership.Ownership) {
	const forgetAt = 50
	w := processtest.Owner(t, o)
	ownership.PruneAt(w, forgetAt)
	p, pid := daemon(t, w, newWord())
	processtest.Follow(t, p)
	for range 2 * forgetAt { // more than are remembered without a look
		p, err := process.Start(process.Spec{Argv: []string{"/bin/true"}, Dir: "/"}, &process.Options{Owner: w})
		if err != nil {
			t.Fatal(err)
		}
		<-p.Closed()
		p.Release()
	}
	if list := w.Background(); len(list) != 1 || list[0].Pid != pid || list[0].Name != "daemon" {
		t.Errorf("Background is %+v, want %d", list, pid)
	}
}

// ownedStatuses: reaping orphans does not take the status of a child that other code waits
// for.
func ownedStatuses(t *testing.T, o *ownership.Ownership) {
	w := processtest.Owner(t, o)
	orphans := processtest.Start(t, processtest.Shell(`i=0; while [ $i -lt 200 ]; do (sleep 0.01 & sleep 0.002 &); i=$((i+1)); done`), &process.Options{Owner: w})
	const workers, each = 4, 20
	failures := make(chan error, 2*workers*each)
	done := make(chan struct{})
	for range workers {
		go func() {
			defer func() { done <- struct{}{} }()
			for range each {
				code := rand.IntN(256)
				cmd := exec.Command("/bin/sh", "-c", "exit "+strconv.Itoa(code))
				err := cmd.Run()
				if got := cmd.ProcessState.ExitCode(); got != code {
					failures <- fmt.Errorf("os/exec: code %d, want %d: %w", got, code, err)
				}
				p, err := process.Start(shellSpec("exit "+strconv.Itoa(code)), &process.Options{Owner: w})
				if err != nil {
					failures <- err
					continue
				}
				<-p.Closed()
				if got := p.Log.Read(0, nil).Exit; got.ExitCode != code || got.EndedBy != protocol.EndedBySelf {
					failures <- fmt.Errorf("process: %+v, want code %d", got, code)
				}
				p.Release()
			}
		}()
	}
	for range workers {
		<-done
	}
	close(failures)
	for err := range failures {
		t.Error(err)
	}
	processtest.Follow(t, orphans)
}

// shellSpec is shell with a directory.
func shellSpec(command string) process.Spec {
	spec := processtest.Shell(command)
	spec.Dir = filepath.Dir(os.Args[0])
	return spec
}

// limited runs a process with a limit to its end, or skips the test where the limit cannot
// be enforced.
func limited(t *testing.T, o *ownership.Ownership, limit string, spec process.Spec) processtest.Story {
	t.Helper()
	w := processtest.Owner(t, o)
	if !slices.Contains(o.Limits(), limit) {
		spec.Dir = "/"
		_, err := process.Start(spec, &process.Options{Owner: w})
		var typed *ownership.LimitError
		if !errors.As(err, &typed) || typed.Limit != limit || typed.Missing == "" {
			t.Errorf("started with a limit that cannot be enforced: %v", err)
		}
		t.Skipf("%v", err)
	}
	return processtest.Follow(t, processtest.Start(t, spec, &process.Options{Owner: w}))
}

// ownedMemory: a process that exceeds its memory limit is killed, and the record contains
// the reason.
func ownedMemory(t *testing.T, o *ownership.Ownership) {
	spec := processtest.Child("use", "200", "0")
	spec.Limits.MemoryBytes = 50 << 20
	s := limited(t, o, ownership.LimitMemory, spec)
	if e := s.Exit; e.ExitCode != 137 || e.EndedBy != protocol.EndedBySelf || !e.OOMKilled {
		t.Errorf("exited with %+v", e)
	}
	spec = processtest.Child("use", "20", "0")
	spec.Limits.MemoryBytes = 200 << 20
	if s := limited(t, o, ownership.LimitMemory, spec); s.Exit.ExitCode != 0 || s.Exit.OOMKilled {
		t.Errorf("exited with %+v, although there was memory enough", s.Exit)
	}
}

// ownedPids: a process cannot start more than it may.
func ownedPids(t *testing.T, o *ownership.Ownership) {
	spec := processtest.Shell("i=0; while [ $i -lt 30 ]; do sleep 100 >/dev/null 2>&1 & i=$((i+1)); done; echo all")
	spec.Limits.Pids = 10
	w := processtest.Owner(t, o)
	s := limited(t, o, ownership.LimitPids, spec)
	if s.Exit.ExitCode == 0 || strings.Contains(s.All, "all") {
		t.Errorf("exited with %+v and %q", s.Exit, s.All)
	}
	if s := processtest.Follow(t, processtest.Start(t, processtest.Shell("echo others"), &process.Options{Owner: w})); s.Exit.ExitCode != 0 {
		t.Errorf("another process exited with %+v", s.Exit)
	}
}

// ownedCPUs: a process gets no more processor time than its limit.
func ownedCPUs(t *testing.T, o *ownership.Ownership) {
	spec := processtest.Child("spin", "3000")
	spec.Limits.CPUs = 0.2
	s := limited(t, o, ownership.LimitCPUs, spec)
	if used := s.Exit.Rusage.UserMs + s.Exit.Rusage.SystemMs; used > 1500 {
		t.Errorf("%d ms of processor time in about 3 s, the share is 0.2", used)
	}
}

// endsNotWithin ends a session, which must still wait after a time for the reason
// given. The channel is closed when it has ended.
func endsNotWithin(t *testing.T, w *ownership.Owner, d time.Duration, although string) <-chan struct{} {
	t.Helper()
	w.End(protocol.EndedBySessionExpired)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Wait()
	}()
	select {
	case <-ended:
		t.Errorf("the session has ended although %s", although)
	case <-time.After(d):
	}
	return ended
}
