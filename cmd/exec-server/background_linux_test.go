package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// runMany runs a shell command many times, eight at once, and waits until each is
// closed.
func (c *wireClient) runMany(prefix, command string, times int) {
	c.t.Helper()
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := worker; i < times; i += 8 {
				id := fmt.Sprint(prefix, i)
				c.start(shellSpec(id, command))
				c.closed(id)
			}
		})
	}
	wg.Wait()
}

// groups lists the control groups in which a server keeps processes, below the
// group that holds the server.
func (p *ownedProgram) groups(cgroup string) []string {
	p.t.Helper()
	groups, err := filepath.Glob(filepath.Join(cgroup, "exec-server-*", "*", "*", "cgroup.procs"))
	if err != nil {
		p.t.Fatal(err)
	}
	return groups
}

// descriptors counts the open descriptors of the server.
func (p *ownedProgram) descriptors() int {
	p.t.Helper()
	return testkit.DescriptorsOf(p.t, p.server())
}

// TestBackgroundEnds checks that commands that leave something running for a moment cost
// nothing once that has ended, and do not disturb each other.
func TestBackgroundEnds(t *testing.T) {
	t.Parallel()
	const times = 150
	fd := testkit.Cgroup(t)
	cgroup, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		t.Fatal(err)
	}
	p := startListening(t, &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd})
	c := p.connect()
	c.runMany("first", "true", 20)
	before := p.descriptors()
	c.runMany("p", "sleep .2 >/dev/null 2>&1 &", times)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if groups := p.groups(cgroup); len(groups) > 0 {
			return fmt.Errorf("%d control groups are left", len(groups))
		}
		if now := p.descriptors(); now > before {
			return fmt.Errorf("the server has %d descriptors, had %d", now, before)
		}
		return nil
	})
}

// TestBackgroundUnderALimit checks that a server with few descriptors starts any number
// of commands that leave something running.
func TestBackgroundUnderALimit(t *testing.T) {
	t.Parallel()
	const limit, times = 160, 200
	fd := testkit.Cgroup(t)
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		t.Fatal(err)
	}
	p := startListening(t, &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd})
	few := unix.Rlimit{Cur: limit, Max: limit}
	if err := unix.Prlimit(p.server(), unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	c := p.connect()
	c.runMany("p", "sleep 600 >/dev/null 2>&1 &", times)
	if n := p.descriptors(); n > limit/2 {
		t.Errorf("the server has %d descriptors, although nothing runs but background commands", n)
	}
	var list struct{ Processes []struct{ State string } }
	c.call("process/list", nil, &list)
	background := 0
	for _, p := range list.Processes {
		if p.State == "background" {
			background++
		}
	}
	if background != times {
		t.Errorf("%d background processes are listed, want %d", background, times)
	}
}
