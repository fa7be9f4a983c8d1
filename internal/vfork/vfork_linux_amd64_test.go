package vfork_test

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/vfork"
)

// start starts a program with /dev/null for its streams, except for its output.
func start(t *testing.T, output *os.File, attr vfork.Attr, path string, argv ...string) (pid int, errno syscall.Errno, refused bool) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i, name := range []string{os.DevNull, output.Name(), output.Name()} {
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		attr.Files[i] = uintptr(fd)
	}
	pid, number, refused := vfork.ForkExec(path, argv, &attr)
	return pid, syscall.Errno(number), refused
}

// started starts a program that can be, or skips the test where clone3 is refused.
func started(t *testing.T, output *os.File, attr vfork.Attr, path string, argv ...string) (pid int) {
	t.Helper()
	pid, errno, refused := start(t, output, attr, path, argv...)
	if refused {
		t.Skipf("clone3 is refused here: %v", errno)
	}
	if errno != 0 {
		t.Fatal(errno)
	}
	return pid
}

func file(t *testing.T) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func wait(t *testing.T, pid int) unix.WaitStatus {
	t.Helper()
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		t.Fatalf("wait for %d: %v", pid, err)
	}
	return status
}

func TestForkExec(t *testing.T) {
	out := file(t)
	attr := vfork.Attr{
		Dir: "/usr", Env: []string{"A=b c"}, Cgroup: -1, Pdeathsig: int(unix.SIGUSR1),
		Limits: []vfork.Limit{{Resource: unix.RLIMIT_CORE, Rlimit: vfork.Rlimit{Cur: 0, Max: 0}}},
	}
	pid := started(t, out, attr, "/bin/sh", "name", "-c", `
		echo $0; pwd; echo "$A"; ulimit -H -c
		read -r pid _ _ _ group session rest < /proc/$$/stat; [ $pid = $group ] && [ $pid = $session ] && echo leader
		exit 7`)
	if status := wait(t, pid); status.ExitStatus() != 7 {
		t.Errorf("exit status %d", status.ExitStatus())
	}
	got, err := os.ReadFile(out.Name())
	if want := "name\n/usr\nb c\n0\nleader\n"; err != nil || string(got) != want {
		t.Errorf("output %q, want %q; %v", got, want, err)
	}
}

// TestFailures: of a child that fails nothing is left.
func TestFailures(t *testing.T) {
	out := file(t)
	good := vfork.Attr{Dir: "/", Cgroup: -1}
	if _, errno, refused := start(t, out, good, "/none"); refused {
		t.Skipf("clone3 is refused here: %v", errno)
	}
	for _, test := range []struct {
		name, path string
		change     func(*vfork.Attr)
		want       syscall.Errno
		refused    bool
	}{
		{"no program", "/none", func(*vfork.Attr) {}, unix.ENOENT, false},
		{"a directory", "/", func(*vfork.Attr) {}, unix.EACCES, false},
		{"no directory", "/bin/true", func(a *vfork.Attr) { a.Dir = "/none" }, unix.ENOENT, false},
		{"no terminal", "/bin/true", func(a *vfork.Attr) { a.Ctty = true }, unix.ENOTTY, false},
		{"NUL in the path", "/bin/true\x00x", func(*vfork.Attr) {}, unix.EINVAL, false},
		{"NUL in the environment", "/bin/true", func(a *vfork.Attr) { a.Env = []string{"A=\x00"} }, unix.EINVAL, false},
		{"no such limit", "/bin/true", func(a *vfork.Attr) { a.Limits = []vfork.Limit{{Resource: 99}} }, unix.EINVAL, false},
		{"no control group", "/bin/true", func(a *vfork.Attr) { a.Cgroup = 999999 }, unix.EBADF, true},
	} {
		attr := good
		test.change(&attr)
		pid, errno, refused := start(t, out, attr, test.path, "name")
		if pid != 0 || errno != test.want || refused != test.refused {
			t.Errorf("%s: pid %d, %v, refused %v; want %v, %v", test.name, pid, errno, refused, test.want, test.refused)
		}
	}
	if _, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != unix.ECHILD {
		t.Errorf("children are left: %v", err)
	}
}

// TestMany starts programs from many threads while the garbage collector runs.
func TestMany(t *testing.T) {
	out := file(t)
	stop := make(chan struct{})
	collecting := make(chan struct{})
	go func() {
		defer close(collecting)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	results := make(chan bool)
	for range 8 {
		go func() {
			for range 50 {
				attr := vfork.Attr{Dir: "/", Env: []string{"A=b"}, Cgroup: -1}
				pid, errno, refused := start(t, out, attr, "/bin/sh", "sh", "-c", `[ "$A" = b ] && exit 5`)
				if refused {
					continue
				}
				if errno != 0 || wait(t, pid).ExitStatus() != 5 {
					t.Errorf("pid %d, errno %v", pid, errno)
				}
			}
			results <- true
		}()
	}
	for range 8 {
		<-results
	}
	close(stop)
	<-collecting
}

// TestSignals: a signal that comes while a child is being made does to it what it
// does to the program that it becomes; no handler of this program runs in it.
func TestSignals(t *testing.T) {
	out := file(t)
	group, err := unix.Getpgid(0)
	if err != nil {
		t.Fatal(err)
	}
	// What is sent to the group shall not reach who runs the test.
	if err := unix.Setpgid(0, 0); err != nil && err != unix.EPERM { // the leader of a session
		t.Fatal(err)
	}
	defer func() { _ = unix.Setpgid(0, group) }()
	received := make(chan os.Signal, 1)
	signal.Notify(received, unix.SIGUSR1)
	defer signal.Stop(received)
	stop := make(chan struct{})
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Kill(0, unix.SIGUSR1)
			}
		}
	}()
	killed := false
	for i := 0; i < 300 || !killed && i < 10000; i++ {
		status := wait(t, started(t, out, vfork.Attr{Dir: "/", Cgroup: -1}, "/bin/true", "true"))
		killed = killed || status.Signal() == unix.SIGUSR1
		if status != 0 && status.Signal() != unix.SIGUSR1 {
			t.Fatalf("a child ended with %#x", status)
		}
	}
	close(stop)
	<-sending
	<-received
	if !killed {
		t.Error("no signal has reached a child")
	}
}

// TestMask: a child has no signals blocked. Shells hide whether they had.
func TestMask(t *testing.T) {
	out := file(t)
	pid := started(t, out, vfork.Attr{Dir: "/", Cgroup: -1}, "/bin/grep", "grep", "SigBlk", "/proc/self/status")
	wait(t, pid)
	got, err := os.ReadFile(out.Name())
	if want := "SigBlk:\t0000000000000000\n"; err != nil || string(got) != want {
		t.Errorf("output %q, want %q; %v", got, want, err)
	}
}
