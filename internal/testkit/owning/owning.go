//go:build linux

// Package owning runs tests in programs that own their processes as a server does, by
// control groups or as a subreaper. A program has one ownership, and its first thread
// reaps, so tests with other mechanisms need a program of their own.
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
	"execserver/internal/ownership"
	"execserver/internal/testkit"
)

// variable names the mechanism in the environment of a program that Each starts.
const variable = "EXEC_SERVER_TEST_MECHANISM"

func init() {
	if Mechanism() != "" {
		runtime.LockOSThread() // see ownership.ReapOrphans
	}
}

// Mechanism returns the mechanism of this program, or "" if Each did not start it.
func Mechanism() ownership.Mechanism { return ownership.Mechanism(os.Getenv(variable)) }

// Main runs the tests of a program that Each started, and does not return. In any other
// program it does nothing. TestMain must call it last, just before it runs the tests.
func Main(m testkit.Tests) {
	if Mechanism() == "" {
		return
	}
	go func() { os.Exit(m.Run()) }()
	panic(ownership.ReapOrphans(context.Background()))
}

// Each runs a test of the same package in one program for each of the mechanisms that an
// embedded server does not have, one after the other. The programs die with this one.
func Each(t *testing.T, test string) { each(t, test, false) }

// Together is like Each, but the programs run at the same time: for tests that wait.
func Together(t *testing.T, test string) { each(t, test, true) }

func each(t *testing.T, test string, together bool) {
	if Mechanism() != "" {
		t.Skip("this is the program that it starts")
	}
	for _, mechanism := range []ownership.Mechanism{ownership.MechanismSubreaper, ownership.MechanismCgroup} {
		t.Run(string(mechanism), func(t *testing.T) {
			if together {
				t.Parallel()
			}
			run(t, test, mechanism)
		})
	}
}

func run(t *testing.T, test string, mechanism ownership.Mechanism) {
	args := []string{"-test.run=^" + test + "$", "-test.timeout=" + patience(t).String()}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), variable+"="+string(mechanism))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if mechanism == ownership.MechanismCgroup {
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

// patience returns the time limit of the program: less than that of this one, so that
// the program can tell where it hangs. 0 means no limit.
func patience(t *testing.T) time.Duration {
	deadline, ok := t.Deadline()
	if !ok {
		return 0
	}
	return max(time.Second, time.Until(deadline)*9/10)
}

// New makes the ownership of this program, and returns it with the directory that holds
// the control groups, or "" if the mechanism has none. Both are removed when the test ends.
// Only tests that Main runs may call New.
func New(t testing.TB) (o *ownership.Ownership, groups string) {
	t.Helper()
	opts := &ownership.Options{Subreaper: true}
	if Mechanism() == ownership.MechanismCgroup {
		claimed, err := cgroup.Claim(ownership.CgroupControllers)
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
	o, err := ownership.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	if got := o.Mechanism(); got != Mechanism() {
		t.Fatalf("mechanism %s, want %s", got, Mechanism())
	}
	return o, groups
}
