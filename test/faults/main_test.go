//go:build linux && faults

// Package faults makes every system call behind a point fail or be late, one at
// a time, while a client starts, feeds, signals and ends processes, and checks
// after each that the server kept its contracts: it answered every request, told
// no wrong ending, lost no descriptor, closed none twice, left no process and no
// goroutine, and served the next request.
//
//	make test-faults
package faults

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

// meansVariable makes the test a program that owns by these means.
const meansVariable = "EXEC_SERVER_TEST_MEANS"

func init() {
	if os.Getenv(meansVariable) != "" {
		runtime.LockOSThread() // see process.ReapOrphans
	}
}

func TestMain(m *testing.M) {
	testkit.Main()
	testkit.InheritNothing()
	testkit.DefaultSignals()
	if os.Getenv(meansVariable) != "" {
		go func() { os.Exit(m.Run()) }()
		panic(process.ReapOrphans(context.Background()))
	}
	os.Exit(m.Run())
}

// TestProcessGroup walks in a program that owns as a library does.
func TestProcessGroup(t *testing.T) {
	if os.Getenv(meansVariable) != "" {
		t.Skip("this program owns by other means")
	}
	walk(t, nil, "")
}

// TestMeans runs TestOwned in a program for each of the other means.
func TestMeans(t *testing.T) {
	if os.Getenv(meansVariable) != "" {
		t.Skip("this is the program that it starts")
	}
	for _, means := range []process.Means{process.MeansSubreaper, process.MeansCgroup} {
		t.Run(string(means), func(t *testing.T) {
			args := []string{"-test.run=^TestOwned$", "-test.v", "-test.timeout=60m"}
			cmd := exec.Command(os.Args[0], args...)
			cmd.Env = append(os.Environ(), meansVariable+"="+string(means))
			if means == process.MeansCgroup {
				cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: testkit.Cgroup(t)}
			}
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			if err := cmd.Run(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOwned(t *testing.T) {
	means := os.Getenv(meansVariable)
	if means == "" {
		t.Skip("TestMeans runs it, in programs of their own")
	}
	opts := &process.OwnershipOptions{Subreaper: true}
	groups := ""
	if means == string(process.MeansCgroup) {
		claimed, err := cgroup.Claim(process.CgroupControllers)
		if err != nil {
			t.Fatal(err)
		}
		defer claimed.Remove()
		opts.Cgroups, groups = claimed.Path(), claimed.Path()
	}
	o, err := process.NewOwnership(opts)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(o.Means()); got != means {
		t.Fatalf("means %s, want %s", got, means)
	}
	walk(t, o, groups)
}

const patience = 20 * time.Second
