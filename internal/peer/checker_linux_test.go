package peer

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
	"execserver/internal/testkit"
)

func TestLimits(t *testing.T) {
	t.Parallel()
	status := func(pids, privileges, seccomp string) string {
		return "Name:\tx\nState:\tS (sleeping)\nUid:\t1\t2\t3\t4\nNSpid:\t" + pids + "\nThreads:\t1\nNoNewPrivs:\t" + privileges + "\nSeccomp:\t" + seccomp + "\n"
	}
	plain, err := parseLimits([]byte(status("7", "0", "0\nSeccomp_filters:\t0")))
	if err != nil || !slices.Equal(plain.users, []int{1, 2, 3, 4}) || plain.ended {
		t.Fatalf("%+v, %v", plain, err)
	}
	hardened, _ := parseLimits([]byte(status("7", "1", "2\nSeccomp_filters:\t3")))
	for _, row := range []struct {
		what, status string
		own          limits
		confined     bool
	}{
		{"as this program", status("8", "0", "0\nSeccomp_filters:\t0"), plain, false},
		{"no new privileges alone", status("8", "1", "0\nSeccomp_filters:\t0"), plain, false},
		{"a filter without them", status("8", "0", "2\nSeccomp_filters:\t1"), plain, false},
		{"a filter", status("8", "1", "2\nSeccomp_filters:\t1"), plain, true},
		{"a filter, which this kernel does not count", status("8", "1", "2"), plain, true},
		{"a namespace", status("8\t1", "0", "0\nSeccomp_filters:\t0"), plain, true},
		{"as many filters as a hardened program", status("8", "1", "2\nSeccomp_filters:\t3"), hardened, false},
		{"fewer filters", status("8", "1", "2\nSeccomp_filters:\t2"), hardened, false},
		{"more filters", status("8", "1", "2\nSeccomp_filters:\t4"), hardened, true},
		{"fewer filters in a namespace", status("8\t1", "1", "2\nSeccomp_filters:\t2"), hardened, true},
	} {
		l, err := parseLimits([]byte(row.status))
		if got := l.beyond(row.own); err != nil || got != "" != row.confined {
			t.Errorf("%s: %q, %v", row.what, got, err)
		}
	}
	for text, ended := range map[string]bool{"State:\tZ (zombie)\nThreads:\t1\n": true, "State:\tZ (zombie)\nThreads:\t2\n": false} {
		if l, err := parseLimits([]byte("Uid:\t1\t1\t1\t1\nNSpid:\t7\n" + text)); err != nil || l.ended != ended {
			t.Errorf("%q: %+v, %v", text, l, err)
		}
	}
	if _, err := parseLimits([]byte("Name:\tx\n")); err == nil {
		t.Error("a file that says nothing is accepted")
	}
}

// TestLooksAreShared lets many ask at the same time which processes are confined. Those who
// have asked before a look began share it.
func TestLooksAreShared(t *testing.T) {
	t.Parallel()
	const askers = 100
	own, err := ownLimits()
	if err != nil {
		t.Fatal(err)
	}
	j := new(Checker)
	j.scanMu.Lock() // as if a look were under way
	var wg sync.WaitGroup
	for range askers {
		wg.Go(func() {
			if _, err := j.confined(own); err != nil {
				t.Error(err)
			}
		})
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.waiting != askers {
			return fmt.Errorf("%d ask", j.waiting)
		}
		return nil
	})
	j.scanMu.Unlock()
	wg.Wait()
	if j.scans != 1 {
		t.Errorf("%d looks for %d who asked at the same time", j.scans, askers)
	}
	if _, err := j.confined(own); err != nil || j.scans != 2 {
		t.Errorf("%d looks in all after another one has asked, %v", j.scans, err)
	}
}

// TestConfinedAreFound starts a process in a process namespace of its own.
func TestConfinedAreFound(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	own, err := ownLimits()
	if err != nil {
		t.Fatal(err)
	}
	found, err := new(Checker).confined(own)
	if err != nil || !slices.ContainsFunc(found, func(s suspect) bool { return s.pid == cmd.Process.Pid }) {
		t.Errorf("%d is not in %v, %v", cmd.Process.Pid, found, err)
	}
}

// TestConfinedChainIsFound has confined processes that end faster than they can be examined, while
// there always is one.
func TestConfinedChainIsFound(t *testing.T) {
	const user = 61236 // without other processes
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	program, err := os.Open("/proc/self/exe") // other users may not enter its directory
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	cmd := exec.Command("/proc/self/fd/3", "chain")
	cmd.ExtraFiles = []*os.File{program}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	stdin, stdout := testkit.StartPiped(t, cmd)
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	if _, err := io.ReadFull(stdout, make([]byte, len("started\n"))); err != nil {
		t.Fatal(err)
	}
	own, err := ownLimits()
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		found, err := new(Checker).confined(own)
		if err == nil && !slices.ContainsFunc(found, func(s suspect) bool { return s.unknown || slices.Contains(s.users, user) }) {
			t.Fatalf("there are said to be none but %+v", found)
		}
	}
}

// tcpPair returns the two ends of a connection over loopback; near was accepted.
func tcpPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if far, err = net.Dial("tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	if near, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close() })
	return near, far
}

// TestLeftSocket has a socket that is on its way between two others, with no process that holds
// it, as a confined process can leave one behind.
func TestLeftSocket(t *testing.T) {
	if !seesAllProcesses() || os.Geteuid() != 0 {
		t.Skip("another process may hold a socket without being seen: not in the first process namespace, or not root")
	}
	// Not in parallel with tests that start processes, which hold the socket for a
	// moment.
	near, far := tcpPair(t)
	// Use a user without processes: on some machines even some of root's cannot be
	// examined.
	if err := sys.OnDescriptor(far, func(fd int) error { return unix.Fchown(fd, 61239, 61239) }); err != nil {
		t.Fatal(err)
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	if err := sys.OnDescriptor(far, func(fd int) error { return unix.Sendmsg(ends[0], []byte{0}, unix.UnixRights(fd), nil, 0) }); err != nil {
		t.Fatal(err)
	}
	found, err := FindTCP(addrPort(near.LocalAddr()), addrPort(near.RemoteAddr()))
	if err != nil {
		t.Fatal(err)
	}
	judge := new(Checker)
	if _, err := judge.CheckTCP(found); err != nil {
		t.Errorf("the socket of this program: %v", err)
	}
	_ = far.Close()
	if _, err := judge.CheckTCP(found); !IsConfinementError(err) {
		t.Errorf("a socket that no process holds: %v", err)
	}
}

// TestHeldByAChild has a confined child hold the socket of its parent as well, as one does for a
// moment that its parent is just starting.
func TestHeldByAChild(t *testing.T) {
	t.Parallel()
	near, far := tcpPair(t)
	file, err := far.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	child := exec.Command("sleep", "1000")
	child.ExtraFiles = []*os.File{file}
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL}
	if err := child.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	found, err := FindTCP(addrPort(near.LocalAddr()), addrPort(near.RemoteAddr()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := new(Checker).CheckTCP(found); err != nil {
		t.Error(err)
	}
}
