//go:build linux

// Package owning runs tests in programs that own what they start by the means of
// a server. A program has one ownership, and its first thread reaps; what its
// tests start must not be found by others.
package owning

import (
	"bytes"
	"context"
	"errors"
	"io"
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

// variable makes the test program one that owns by these means.
const variable = "EXEC_SERVER_TEST_MEANS"

func init() {
	if Means() != "" {
		runtime.LockOSThread() // see process.ReapOrphans
	}
}

// Means are those of this program; "" in any other than those that Each starts.
func Means() process.Means { return process.Means(os.Getenv(variable)) }

// Main runs the tests of a program that Each has started, and does not return. It
// does nothing in any other. TestMain calls it when everything else is prepared.
func Main(m testkit.Tests) {
	if Means() == "" {
		return
	}
	go func() { os.Exit(m.Run()) }()
	panic(process.ReapOrphans(context.Background()))
}

// Each runs a test of the same package in programs of its own, one for each of the
// means that a library has not. They die with this program.
func Each(t *testing.T, test string) {
	if Means() != "" {
		t.Skip("this is the program that it starts")
	}
	for _, means := range []process.Means{process.MeansSubreaper, process.MeansCgroup} {
		t.Run(string(means), func(t *testing.T) { run(t, test, means) })
	}
}

func run(t *testing.T, test string, means process.Means) {
	args := []string{"-test.run=^" + test + "$", "-test.timeout=" + patience(t).String()}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), variable+"="+string(means))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if means == process.MeansCgroup {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, testkit.Cgroup(t)
	}
	var output bytes.Buffer
	cmd.Stdout = &output
	if testing.Verbose() {
		cmd.Stdout = io.MultiWriter(&output, os.Stdout) // it may take long
	}
	cmd.Stderr = cmd.Stdout
	runtime.LockOSThread() // the signal comes when this thread ends
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		t.Errorf("%v\n%s", err, output.Bytes())
	}
}

// patience is for how long the program may run: less than this one, to tell where
// it hangs. 0 is for as long as it likes.
func patience(t *testing.T) time.Duration {
	deadline, ok := t.Deadline()
	if !ok {
		return 0
	}
	return max(time.Second, time.Until(deadline)*9/10)
}

// New makes the ownership of this program by its means, for a test to which Main
// leads, and returns the directory that holds the control groups; "" where there
// are none. Both go with the test.
func New(t testing.TB) (o *process.Ownership, groups string) {
	t.Helper()
	opts := &process.OwnershipOptions{Subreaper: true}
	if Means() == process.MeansCgroup {
		claimed, err := cgroup.Claim(process.CgroupControllers)
		if err != nil {
			t.Fatal(err)
		}
		groups = claimed.Path()
		opts.Cgroups = groups
		t.Cleanup(func() {
			claimed.Remove()
			if _, err := os.Stat(groups); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is still there: %v", groups, err)
			}
		})
	}
	o, err := process.NewOwnership(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	if got := o.Means(); got != Means() {
		t.Fatalf("means %s, want %s", got, Means())
	}
	return o, groups
}
