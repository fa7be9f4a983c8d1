package ownership_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/cgroup"
	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/testkit"
	"execserver/internal/testkit/processtest"
	"execserver/protocol"
)

// inGroups returns an ownership by control groups, and the directory where the
// kernel shows the group of a process, in a program whose mounts nobody else sees.
// It returns nil in the program that starts that one.
func inGroups(t *testing.T) (o *ownership.Ownership, groups string) {
	t.Helper()
	if !testkit.InMountNamespace(t) {
		return nil, ""
	}
	claimed, err := cgroup.Claim(nil)
	if err != nil {
		t.Skipf("no control groups here: %v", err)
	}
	t.Cleanup(claimed.Remove)
	o = processtest.Ownership(t, &ownership.Options{Cgroups: claimed.Path()})
	t.Cleanup(o.Close)
	return o, filepath.Join(claimed.Path(), "processes")
}

// theGroup is the only group that there is.
func theGroup(t *testing.T, groups string) string {
	t.Helper()
	found, err := filepath.Glob(groups + "/*/cgroup.kill")
	if err != nil || len(found) != 1 {
		t.Fatalf("control groups: %q, %v", found, err)
	}
	return filepath.Dir(found[0])
}

// bind mounts a path on itself; undo unmounts it.
func bind(t *testing.T, path string, flags uintptr) (undo func()) {
	t.Helper()
	err := unix.Mount(path, path, "", unix.MS_BIND, "")
	if err == nil && flags != 0 {
		err = unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|flags, "")
	}
	if err != nil {
		t.Skipf("cannot mount %s: %v", path, err)
	}
	return func() { _ = unix.Unmount(path, unix.MNT_DETACH) }
}

// stays checks that nobody removes a group for some time.
func stays(t *testing.T, group string) {
	t.Helper()
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(group); err != nil {
			t.Fatalf("the group is removed too early: %v", err)
		}
	}
}

// TestBusyGroup: a group that the kernel does not remove when it is empty is
// removed later, whether its session lives or has ended.
func TestBusyGroup(t *testing.T) {
	o, groups := inGroups(t)
	if o == nil {
		return
	}
	for _, ends := range []bool{false, true} {
		w := processtest.Owner(t, o)
		p := processtest.Start(t, processtest.Shell("exec sleep 1000"), &process.Options{Owner: w, Name: "p"})
		group := theGroup(t, groups)
		unmount := bind(t, group, 0) // what is mounted somewhere is busy
		p.Terminate()
		processtest.Follow(t, p)
		if ends {
			w.End(protocol.EndedBySessionExpired)
			w.Wait()
		}
		stays(t, group)
		unmount()
		testkit.WaitFor(t, testkit.Patience, func() error {
			if _, err := os.Stat(group); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%s is still there; its session has ended: %v; error: %v", group, ends, err)
			}
			return nil
		})
	}
}

// TestBusyGroupAfterClose: nobody touches a group after the ownership was closed.
func TestBusyGroupAfterClose(t *testing.T) {
	o, groups := inGroups(t)
	if o == nil {
		return
	}
	w := processtest.Owner(t, o)
	p := processtest.Start(t, processtest.Shell("exec sleep 1000"), &process.Options{Owner: w, Name: "p"})
	group := theGroup(t, groups)
	unmount := bind(t, group, 0)
	p.Terminate()
	processtest.Follow(t, p)
	w.End(protocol.EndedBySessionExpired)
	w.Wait()
	o.Close()
	unmount()
	stays(t, group)
}

// TestGroupThatCannotBeKilledAtFirst: what a refused kill has left alive is killed
// before the end of the session is complete.
func TestGroupThatCannotBeKilledAtFirst(t *testing.T) {
	o, groups := inGroups(t)
	if o == nil {
		return
	}
	w := processtest.Owner(t, o)
	p, pid := daemon(t, w, newWord())
	processtest.Follow(t, p)
	permit := bind(t, filepath.Join(theGroup(t, groups), "cgroup.kill"), unix.MS_RDONLY)
	ended := endsNotWithin(t, w, 50*time.Millisecond, "a process of its own runs")
	if !testkit.Alive(pid) {
		t.Error("the kill was not refused")
	}
	permit()
	testkit.Within(t, "the end of the session", func() { <-ended })
	testkit.Gone(t, pid)
}
