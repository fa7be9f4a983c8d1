package sandbox_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// connectAll is a program that waits for a file, connects to sockets and prints each
// outcome.
func connectAll(wait string, paths []string) {
	fmt.Println("ready")
	for wait != "" {
		if text, _ := os.ReadFile(wait); len(text) > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for _, path := range paths {
		result := "allowed"
		err := connect(unix.AF_UNIX, unix.SOCK_STREAM, &unix.SockaddrUnix{Name: path})
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			result = unix.ErrnoName(errno)
		}
		fmt.Printf("%s\t%s\n", path, result)
	}
}

// listen listens at a path to which every user may connect, in a directory that the
// machine's user may enter.
func (m *machine) listen(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	dir := filepath.Dir(path)
	var l net.Listener
	var err error
	eventually(t, "the directory goes again and again", func() bool {
		if os.Mkdir(dir, mode) == nil {
			t.Cleanup(func() { _ = os.Remove(dir) })
			m.own(dir)
		}
		l, err = net.Listen("unix", path)
		return !errors.Is(err, os.ErrNotExist) // a test that is at its end has removed the directory
	})
	m.must(err)
	t.Cleanup(func() { _ = l.Close() })
	m.must(os.Chmod(path, 0o777))
	m.own(path)
}

// TestSockets connects to sockets of other programs from a command with a network. Some of
// the programs begin to listen while the command runs (row 52).
func TestSockets(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		unique := filepath.Base(m.base)
		uid := os.Geteuid()
		if m.user.uid != 0 {
			uid = m.user.uid
		}
		at := func(elements ...string) string { return filepath.Join(elements...) }
		// What there is when the command starts, and what comes later.
		before := map[string]bool{ // whether it may be connected to
			at(m.outside, "socket"): false, at(m.ws, "socket"): true, at(m.base, "named/socket"): true,
			at(m.base, "allowed/socket"):                        true,
			at("/tmp/ssh-"+unique, "agent.1"):                   false,
			at(fmt.Sprint("/tmp/tmux-", uid), unique+"-before"): false,
		}
		after := map[string]bool{at(m.ws, "socket2"): true, at(fmt.Sprint("/tmp/tmux-", uid), unique+"-after"): false}
		if os.Geteuid() == 0 {
			before[at("/run", unique, "socket")] = false
			after[at("/run", unique+"-after", "socket")] = false
			after[at("/run", unique, "socket2")] = false
		}
		var paths []string
		for path := range before {
			m.listen(t, path, 0o755)
			paths = append(paths, path)
		}
		sandbox := m.workspaceWrite(object{"path": object{"type": "path", "path": uri(at(m.base, "named/socket"))}, "access": "read"})
		sandbox["permissions"].(object)["network"] = "enabled"
		for path := range after {
			paths = append(paths, path)
		}
		_ = os.Remove(at(m.ws, "go"))
		p, _, err := m.begin(command{argv: append([]string{m.program, "connect", at(m.ws, "go")}, paths...), sandbox: sandbox})
		m.must(err)
		m.awaitOutput(p, "ready")
		for path := range after {
			m.listen(t, path, 0o700)
		}
		m.write(at(m.ws, "go"), "go")
		m.await(p)
		for _, want := range []map[string]bool{before, after} {
			for path, allowed := range want {
				got := "missing"
				for line := range strings.Lines(m.written(p)) {
					if result, ok := strings.CutPrefix(line, path+"\t"); ok {
						got = strings.TrimSpace(result)
					}
				}
				if (got == "allowed") != allowed {
					t.Errorf("connect to %s: %s, want it to work: %v", path, got, allowed)
				}
			}
		}
		if m.means == "bubblewrap" {
			return
		}
		m.says(sandbox, [2]string{"cat /etc/resolv.conf >/dev/null", "done"}, [2]string{"touch /run/x", "Read-only file system"})
		// Without a sandbox all of them can be reached.
		text := m.written(m.run(command{argv: append([]string{m.program, "connect", ""}, paths...)}))
		if n := strings.Count(text, "allowed\n"); n != len(paths) {
			t.Errorf("without a sandbox: %s", text)
		}
	})
}

// TestRenamedSockets connects to sockets that have been renamed since they were bound, as
// ssh renames those of its masters.
func TestRenamedSockets(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		paths := []string{filepath.Join(m.outside, "linked"), filepath.Join(m.outside, "renamed"), filepath.Join(m.ws, "renamed")}
		for i, path := range paths {
			m.listen(t, path+".bound", 0o755)
			if i == 0 {
				m.must(os.Link(path+".bound", path))
				m.must(os.Remove(path + ".bound"))
			} else {
				m.must(os.Rename(path+".bound", path))
			}
		}
		sandbox := m.workspaceWrite()
		sandbox["permissions"].(object)["network"] = "enabled"
		p := m.run(command{argv: append([]string{m.program, "connect", ""}, paths...), sandbox: sandbox})
		for i, path := range paths {
			if got := strings.Contains(m.written(p), path+"\tallowed"); got != (i == 2) {
				t.Errorf("connect to %s: %v", path, got)
			}
		}
	})
}

// TestSocketsComeAndGo starts commands while sockets that are to be hidden from them
// go as fast as others come.
func TestSocketsComeAndGo(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		dir, err := os.MkdirTemp("/var/tmp", "sockets-")
		m.must(err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		sandbox := m.policy("enabled", special("root", "read"))
		begun := time.Now()
		m.says(sandbox, [2]string{"echo here", "here"})
		pause := 10 * time.Since(begun) // at most: most starts must not lose a socket
		var churn sync.WaitGroup
		var stop atomic.Bool
		churn.Go(func() {
			var open []net.Listener
			for i := 0; !stop.Load(); i++ {
				l, err := net.Listen("unix", filepath.Join(dir, strconv.Itoa(i)))
				if err != nil {
					t.Error(err)
					break
				}
				if open = append(open, l); len(open) > 5 {
					_ = open[0].Close()
					open = open[1:]
				}
				time.Sleep(rand.N(pause))
			}
			for _, l := range open {
				_ = l.Close()
			}
		})
		defer churn.Wait()
		defer stop.Store(true)
		for range 10 {
			m.says(sandbox, [2]string{"echo here", "here"})
		}
	})
}

// TestSocketDirectoriesComeAndGo starts commands while directories go that are hollow for
// them, or kept in place, as that of a key agent goes with the agent. The kernel takes the
// mount away with the directory.
func TestSocketDirectoriesComeAndGo(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		workspace := m.workspaceWrite()
		workspace["permissions"].(object)["network"] = "enabled"
		everything := m.policy("enabled", special("root", "write"), at(m.outside, "read"))
		begun := time.Now()
		m.says(everything, [2]string{"echo here", "here"})
		life := 20 * time.Since(begun) // at most: most starts must not lose a directory
		var churn sync.WaitGroup
		stop := make(chan struct{})
		churn.Go(func() {
			for i := 0; ; i++ {
				dir := filepath.Join("/tmp", fmt.Sprintf("ssh-%s-%d", filepath.Base(m.base), i))
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Error(err)
					return
				}
				m.own(dir)
				l, err := net.Listen("unix", filepath.Join(dir, "agent"))
				stopped := false
				if err == nil {
					select {
					case <-time.After(rand.N(life)):
					case <-stop:
						stopped = true
					}
					err = l.Close()
				}
				if err = errors.Join(err, os.Remove(dir)); err != nil {
					t.Error(err)
				}
				if err != nil || stopped {
					return
				}
			}
		})
		defer churn.Wait()
		defer close(stop)
		for range 20 {
			m.says(workspace, [2]string{"echo here", "here"})
			m.says(everything, [2]string{"echo here", "here"})
		}
	})
}

// TestSocketsThatOthersKeep has a socket in a directory that another user keeps to itself.
// It keeps no command of root from starting, and none connects to it.
func TestSocketsThatOthersKeep(t *testing.T) {
	testkit.System(t, testkit.Root)
	everywhere(t, func(t *testing.T, m *machine) {
		dir, err := os.MkdirTemp("/var/tmp", "kept-")
		m.must(err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		path := filepath.Join(dir, "socket")
		l, err := net.Listen("unix", path)
		m.must(err)
		defer l.Close()
		m.must(os.Chmod(path, 0o777))
		m.must(os.Chown(dir, 54321, 54321))
		p := m.run(command{argv: []string{m.program, "connect", "", path}, sandbox: m.policy("enabled", special("root", "read"))})
		if got := m.written(p); !strings.Contains(got, path+"\tE") {
			t.Errorf("connect: %q", got)
		}
	})
}

func init() { attacks["datagrams"] = datagramAttacks }

// datagram sends a datagram to a name, from a socket that is not connected or is connected
// elsewhere.
func datagram(fd int, err error, name string) error {
	if err != nil {
		return err
	}
	return unix.Sendmsg(fd, []byte("x"), nil, &unix.SockaddrUnix{Name: name}, 0)
}

var datagramAttacks = []attempt{
	{"22 sendmsg to a daemon", "EPERM", func(a *attacker) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		return datagram(fd, err, a.socket)
	}},
	{"22 sendmsg from a raw socket", "EPERM", func(a *attacker) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_RAW, 0)
		return datagram(fd, err, a.socket)
	}},
	{"22 sendmsg from a pair", "EPERM", func(a *attacker) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		return datagram(pair[0], err, a.socket)
	}},
	// Where the network is a new one, the kernel refuses it, and not the filter.
	{"22 sendto from a pair of streams", "EPERM EISCONN", func(a *attacker) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		return unix.Sendto(pair[0], []byte("x"), 0, &unix.SockaddrUnix{Name: a.socket})
	}},
	// Event loops, asyncio's among them, wake themselves so.
	{"22 send within a pair of streams", "allowed", func(*attacker) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		if err := unix.Sendto(pair[0], []byte("x"), 0, nil); err != nil {
			return err
		}
		if _, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<16); err != nil {
			return err
		}
		if _, err := unix.Getsockname(pair[0]); err != nil {
			return err
		}
		if _, err := unix.Getpeername(pair[0]); err != nil {
			return err
		}
		return unix.Shutdown(pair[0], unix.SHUT_WR)
	}},
	{"22 sendmsg from a pair of streams", "EISCONN", func(a *attacker) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		return datagram(pair[0], err, a.socket)
	}},
}

// TestDatagrams checks that a command without a network cannot send datagrams to a
// daemon.
func TestDatagrams(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		path := filepath.Join(m.base, "socket")
		daemon, err := net.ListenPacket("unixgram", path)
		m.must(err)
		defer daemon.Close()
		m.must(unix.Chmod(path, 0o777))
		p := m.run(command{sandbox: m.workspaceWrite(), argv: []string{
			m.program, "attack", "datagrams", m.ws, m.outside, "1", "1", path, "x",
		}})
		judge(t, datagramAttacks, m.written(p))
	})
}
