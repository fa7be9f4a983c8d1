package cgroup_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/cgroup"
	"execserver/internal/testkit"
)

// insideVariable makes the test program run in a control group of its own, with which it
// may do anything.
const insideVariable = "EXEC_SERVER_TEST_INSIDE"

func TestMain(m *testing.M) {
	testkit.Main()
	testkit.InheritNothing()
	if os.Getenv(insideVariable) != "" {
		os.Exit(m.Run()) // the claim lasts as long as the program
	}
	os.Exit(testkit.Ledger(m).Run())
}

// inside runs a test in a control group of its own, delegated or not.
func inside(t *testing.T, delegated bool, test func(t *testing.T)) {
	if os.Getenv(insideVariable) == t.Name() {
		test(t)
		return
	}
	fd := testkit.Cgroup(t)
	var mark [1]byte
	switch _, err := unix.Fgetxattr(fd, testkit.Delegate, mark[:]); {
	case !delegated && err == nil:
		if err := unix.Fremovexattr(fd, testkit.Delegate); err != nil {
			t.Fatal(err)
		}
	case delegated && err != nil:
		t.Skipf("control groups cannot be delegated here: %v", err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), insideVariable+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
	out, err := cmd.CombinedOutput()
	switch {
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("%s", out)
	case err != nil:
		t.Errorf("%s\n%v", out, err)
	}
}

func claim(t *testing.T, controllers ...string) *cgroup.Claimed {
	t.Helper()
	c, err := cgroup.Claim(controllers)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func ownGroup(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	_, path, _ := strings.Cut(string(text), "0::")
	return strings.TrimSpace(path)
}

// spawn starts a child program of the test kit in a group.
func spawn(t *testing.T, g *cgroup.Group, name string, args ...string) *exec.Cmd {
	t.Helper()
	argv, env := testkit.Child(name, args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	dir, err := g.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestGroup(t *testing.T) {
	inside(t, false, func(t *testing.T) {
		c := claim(t)
		g, err := c.MakeGroup()
		if err != nil {
			t.Fatal(err)
		}
		if populated, err := g.Populated(); populated || err != nil {
			t.Errorf("an empty group is populated: %v %v", populated, err)
		}
		cmd := spawn(t, g, "idle")
		// Groups that a process creates below its own belong to it.
		below := filepath.Join(g.Path(), "below")
		if err := os.Mkdir(below, 0o755); err != nil {
			t.Fatal(err)
		}
		second := spawn(t, g, "idle")
		if err := os.WriteFile(filepath.Join(below, "cgroup.procs"), []byte(strconv.Itoa(second.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
		pids, err := g.Processes()
		slices.Sort(pids)
		want := []int{cmd.Process.Pid, second.Process.Pid}
		slices.Sort(want)
		if err != nil || !slices.Equal(pids, want) {
			t.Errorf("Processes: %v %v, want %v", pids, err, want)
		}
		empty := filepath.Join(below, "empty")
		if err := os.Mkdir(empty, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := g.Remove(); !errors.Is(err, unix.EBUSY) {
			t.Errorf("Remove of a populated group: %v", err)
		}
		if _, err := os.Stat(empty); err != nil {
			t.Errorf("Remove of a populated group has removed %s", empty)
		}
		if err := g.Kill(); err != nil {
			t.Fatal(err)
		}
		_, _ = cmd.Process.Wait()
		_, _ = second.Process.Wait()
		testkit.WaitFor(t, time.Minute, func() error {
			if populated, err := g.Populated(); populated || err != nil {
				return fmt.Errorf("populated after the kill: %v %w", populated, err)
			}
			return nil
		})
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
		if _, err := g.OOMKills(); err == nil {
			t.Error("OOMKills of a group without the memory controller")
		}
		c.Remove()
		if _, err := os.Stat(c.Path()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the claim is still there: %v", err)
		}
	})
}

// TestStale checks that the next server removes the groups of a killed server, but not
// those of a live one.
func TestStale(t *testing.T) {
	inside(t, false, func(t *testing.T) {
		base := filepath.Dir(claim(t).Path()) // the first lives as long as this program
		stale := filepath.Join(base, "exec-server-1-00000000", "processes", "p")
		other := filepath.Join(base, "exec-server-of-another")
		for _, path := range []string{stale, other} {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		second := claim(t)
		entries, err := filepath.Glob(filepath.Join(base, "exec-server-*"))
		if err != nil || len(entries) != 3 {
			t.Errorf("control groups: %v %v, want those of two servers that live, and a stranger's", entries, err)
		}
		second.Remove()
	})
}

// TestClaimsAtTheSameTime checks that servers that start and end at the same time do not
// remove each other's groups.
func TestClaimsAtTheSameTime(t *testing.T) {
	inside(t, false, func(t *testing.T) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					c, err := cgroup.Claim(nil)
					if err != nil {
						t.Error(err)
						return
					}
					g, err := c.MakeGroup()
					if err != nil {
						t.Error(err)
					} else {
						_ = g.Remove()
					}
					c.Remove()
				}
			})
		}
		wg.Wait()
	})
}

// TestControllers checks that in a delegated group the program moves to a group below,
// because a group with processes can have no controllers for others, and that it moves
// back in the end.
func TestControllers(t *testing.T) {
	inside(t, true, func(t *testing.T) {
		before := ownGroup(t)
		controllers := someControllers(t)
		c := claim(t, append(controllers, "nonsense")...)
		got := c.Controllers()
		slices.Sort(got)
		if !slices.Equal(got, controllers) {
			t.Errorf("Controllers: %v, want %v", got, controllers)
		}
		if now := ownGroup(t); now != before+"/"+filepath.Base(c.Path())+"/server" {
			t.Errorf("this program is in %s, was in %s", now, before)
		}
		g, err := c.MakeGroup()
		if err != nil {
			t.Fatal(err)
		}
		for _, controller := range controllers {
			if files, _ := filepath.Glob(filepath.Join(g.Path(), controller+".*")); len(files) == 0 {
				t.Errorf("the group has no files of %s", controller)
			}
		}
		cmd := spawn(t, g, "exit", "0")
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
		c.Remove()
		if now := ownGroup(t); now != before {
			t.Errorf("this program is in %s, was in %s", now, before)
		}
		if _, err := os.Stat(c.Path()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the claim is still there: %v", err)
		}
	})
}

// TestNoControllers checks that a group keeps its settings if it was not delegated, or if
// other processes are in it.
func TestNoControllers(t *testing.T) {
	inside(t, false, func(t *testing.T) {
		before := ownGroup(t)
		c := claim(t, someControllers(t)...)
		defer c.Remove()
		if got := c.Controllers(); len(got) != 0 || ownGroup(t) != before {
			t.Errorf("Controllers: %v in %s, although nothing was delegated", got, ownGroup(t))
		}
	})
}

func TestNotAlone(t *testing.T) {
	inside(t, true, func(t *testing.T) {
		argv, _ := testkit.Child("idle")
		other := exec.Command(argv[0])
		other.Env = []string{"EXEC_SERVER_TEST_CHILD=idle"}
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
		before := ownGroup(t)
		c := claim(t, someControllers(t)...)
		defer c.Remove()
		if got := c.Controllers(); len(got) != 0 || ownGroup(t) != before {
			t.Errorf("Controllers: %v in %s, although another process is in the group", got, ownGroup(t))
		}
	})
}

// someControllers returns controllers that the group of the test can have.
func someControllers(t *testing.T) []string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); strings.Contains(line, " - cgroup2 ") {
			text, err := os.ReadFile(filepath.Join(fields[4], ownGroup(t), "cgroup.controllers"))
			if controllers := strings.Fields(string(text)); err == nil && len(controllers) > 0 {
				slices.Sort(controllers)
				return controllers
			}
		}
	}
	t.Skip("no controller is available to control groups here")
	return nil
}
