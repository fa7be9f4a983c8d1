package sandbox_test

import (
	"errors"
	"fmt"
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
)

// connectAll is what the program does that connects to sockets, once a file is
// there. It says what became of each.
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

// listen listens at a path that everybody may connect to, in a directory that the
// machine's user can enter.
func (m *machine) listen(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	dir := filepath.Dir(path)
	if os.Mkdir(dir, mode) == nil {
		t.Cleanup(func() { _ = os.Remove(dir) })
		m.own(dir)
	}
	l, err := net.Listen("unix", path)
	m.must(err)
	t.Cleanup(func() { _ = l.Close() })
	m.must(os.Chmod(path, 0o777))
	m.own(path)
}

// TestSockets has sockets of other programs, some of which begin to listen only
// while the command runs that may use the network (row 52).
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
		var p *running
		var err error
		for range 10 {
			p, _, err = m.begin(command{argv: append([]string{m.program, "connect", at(m.ws, "go")}, paths...), sandbox: sandbox})
			if err == nil || m.means != "bubblewrap" {
				break // bubblewrap fails when a socket of another test has just gone
			}
		}
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

// TestRenamedSockets has sockets that are not called any more what they were bound
// to, as ssh makes those of its masters.
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
				time.Sleep(20 * time.Millisecond) // a start takes about half as long
			}
			for _, l := range open {
				_ = l.Close()
			}
		})
		defer churn.Wait()
		defer stop.Store(true)
		for range 10 {
			m.says(m.policy("enabled", special("root", "read")), [2]string{"echo here", "here"})
		}
	})
}
