package ownership_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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

// inGroups returns an ownership by control groups, and the directory in which the kernel
// shows the group of a process, in a program with a mount namespace of its own. It returns
// nil in the program that starts that one.
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
	o = processtest.Ownership(t, &ownership.Options{Subreaper: true, Cgroups: claimed.Path()})
	t.Cleanup(o.Close)
	return o, filepath.Join(claimed.Path(), "processes")
}

// theGroup returns the only group.
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

// stays checks that a group is not removed for some time.
func stays(t *testing.T, group string) {
	t.Helper()
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(group); err != nil {
			t.Fatalf("the group is removed too early: %v", err)
		}
	}
}

// TestUsageWhileStarting looks at processes while their groups are being made. The race
// detector sees it if that is too early.
func TestUsageWhileStarting(t *testing.T) {
	o, _ := inGroups(t)
	if o == nil {
		return
	}
	w := o.NewOwner()
	defer w.Forget()
	made := make(chan struct{})
	go func() {
		defer close(made)
		for range 100 {
			tree, err := w.NewTree(nil, ownership.TreeOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			tree.Discard()
		}
	}()
	for {
		if used := o.UsageOf([]*ownership.Owner{w}); len(used) > 0 {
			t.Errorf("nothing has started, but uses %v", used)
		}
		select {
		case <-made:
			return
		default:
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

// TestBusyGroupAfterClose: a group is left alone after the ownership was closed.
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

// TestNoMoreGroups: a process that gets no control group is found in /proc, and processes
// of other groups are not attributed to it, or taken for unowned.
func TestNoMoreGroups(t *testing.T) {
	o, groups := inGroups(t)
	if o == nil {
		return
	}
	mine, other := processtest.Owner(t, o), processtest.Owner(t, o)
	leave := func() (pid int) {
		shell := processtest.Shell("sleep 1000 </dev/null >/dev/null 2>&1 & echo $!")
		s := processtest.Follow(t, processtest.Start(t, shell, &process.Options{Owner: mine}))
		pid, err := strconv.Atoi(strings.TrimSpace(s.All))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	closed, orphan := daemon(t, mine, newWord())
	processtest.Follow(t, closed)
	want := []int{orphan, leave()}
	if err := os.WriteFile(filepath.Join(groups, "cgroup.max.descendants"), []byte("0"), 0); err != nil {
		t.Skipf("cannot limit the number of control groups: %v", err)
	}
	want = append(want, leave())
	slices.Sort(want)
	var got []int
	for _, b := range mine.Background() {
		got = append(got, b.Pid)
	}
	if !slices.Equal(got, want) {
		t.Errorf("Background: %v, want %v", got, want)
	}
	if running := o.HasBackground([]*ownership.Owner{mine, other}); !running[mine] || running[other] {
		t.Errorf("an owner leaves something running: %v, another: %v", running[mine], running[other])
	}
	mine.End(protocol.EndedBySessionExpired)
	mine.Wait()
	testkit.Gone(t, want...)
}
