//go:build linux

// Package slopes runs many short commands of mixed kinds and looks whether
// anything grows with their number: descriptors, control groups, goroutines,
// memory, the time that a start takes.
//
//	make slopes
//	SLOPES_COMMANDS=10000 go test -v ./test/slopes
package slopes

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"execserver/internal/cgroup"
	"execserver/internal/testkit"
	"execserver/process"
)

// ownerVariable makes the test a program that owns as a server does.
const ownerVariable = "EXEC_SERVER_TEST_OWNER"

func init() {
	if os.Getenv(ownerVariable) != "" {
		runtime.LockOSThread() // see process.ReapOrphans
	}
}

func TestMain(m *testing.M) {
	testkit.InheritNothing()
	testkit.DefaultSignals()
	if os.Getenv(ownerVariable) != "" {
		go func() { os.Exit(m.Run()) }()
		panic(process.ReapOrphans(context.Background()))
	}
	os.Exit(m.Run())
}

// TestSlopes runs TestOwner in a program of its own, in a control group of its own
// where there are any.
func TestSlopes(t *testing.T) {
	if os.Getenv(ownerVariable) != "" {
		t.Skip("this is the program that it starts")
	}
	for _, means := range []process.Means{process.MeansCgroup, process.MeansSubreaper} {
		t.Run(string(means), func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestOwner$", "-test.v", "-test.timeout=0")
			cmd.Env = append(os.Environ(), ownerVariable+"="+string(means))
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if means == process.MeansCgroup {
				cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, testkit.Cgroup(t)
			}
			runtime.LockOSThread() // the signal comes when this thread ends
			defer runtime.UnlockOSThread()
			out, err := cmd.CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOwner(t *testing.T) {
	means := os.Getenv(ownerVariable)
	if means == "" {
		t.Skip("TestSlopes runs it, in a program of its own")
	}
	commands := int(testkit.Number(t, "SLOPES_COMMANDS", 1000))
	opts, groups := &process.OwnershipOptions{Subreaper: true}, ""
	if means == string(process.MeansCgroup) {
		claimed, err := cgroup.Claim(process.CgroupControllers)
		if err != nil {
			t.Fatal(err)
		}
		defer claimed.Remove()
		groups = claimed.Path()
		opts.Cgroups = groups
	}
	o, err := process.NewOwnership(opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name       string
		perSession int
	}{
		{"one session", commands},
		{"many sessions", max(1, commands/1000)},
	} {
		t.Run(test.name, func(t *testing.T) {
			begun := time.Now()
			r := newRun(t, o, groups)
			r.all(commands, test.perSession)
			t.Logf("%d commands in %v", commands, time.Since(begun).Round(time.Second))
			r.report(means + ", " + test.name)
		})
	}
}
