//go:build unix

package client_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
)

func TestLaunchFails(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, script string
		timeout      time.Duration
		want         string
	}{
		{"says why", "echo 'Permission denied (publickey)' >&2; exit 255", 0, "exit status 255; it said: Permission denied (publickey)"},
		{"silent", "exit 3", 0, "exit status 3"},
		{"closes its output", "exec >&-; sleep 3600", 0, "closed the connection"},
		{"chatty", "echo hello; exec sleep 3600", 500 * time.Millisecond, "handshake timed out"},
	} {
		_, err := client.Launch(background(t), exec.Command("/bin/sh", "-c", test.script), &client.Options{InitializeTimeout: test.timeout})
		if !errors.As(err, new(*client.DialError)) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	_, err := client.Launch(background(t), exec.Command("/no/such/server"), nil)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "failed to spawn exec-server") {
		t.Errorf("missing: %v", err)
	}
}

// launchSelf launches this program as a server, by way of a shell.
func launchSelf(t *testing.T, script string, opts *client.Options) (*client.Environment, *exec.Cmd) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("/bin/sh", "-c", script, self)
	command.Env = append(os.Environ(), serveVariable+"=1", "GORACE=atexit_sleep_ms=0")
	env, err := client.Launch(background(t), command, opts)
	return opened(t, env, err), command
}

func TestLaunchedServerDies(t *testing.T) {
	t.Parallel()
	env, command := launchSelf(t, `exec "$0"`, nil)
	c := child(env, "idle")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	err := c.Wait()
	if !errors.As(err, new(*client.LostError)) || !strings.Contains(err.Error(), "the server exited: signal: killed") {
		t.Errorf("Wait: %v", err)
	}
	testkit.Within(t, "Done", func() { <-env.Done() })
}

// A server that does not obey is killed, with what it has in its group.
func TestLaunchedServerIsStubborn(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("/bin/sh", "-c", `trap '' TERM; "$0"; while :; do sleep 0.1; done`, self)
	command.Env = append(os.Environ(), serveVariable+"=1", "GORACE=atexit_sleep_ms=0")
	command.Stderr = w
	env, err := client.Launch(background(t), command, nil)
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if group, err := syscall.Getpgid(command.Process.Pid); err != nil || group != command.Process.Pid {
		t.Errorf("the server's group is %d, %v", group, err)
	}
	began := time.Now()
	testkit.Within(t, "Close", func() { _ = env.Close() })
	if took := time.Since(began); took < time.Second {
		t.Errorf("Close took %v: the server did not get its time", took)
	}
	if testkit.Alive(command.Process.Pid) {
		t.Error("the server lives on")
	}
	// The end of its standard error says that nobody of the group is left.
	testkit.Within(t, "the group's end", func() { _, _ = io.Copy(io.Discard, r) })
}

// An obedient server does not keep Close waiting until the server is killed.
func TestCloseIsQuick(t *testing.T) {
	t.Parallel()
	env, command := launchSelf(t, `exec "$0"`, nil)
	c := child(env, "idle")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
	if status := command.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() && status.Signal() == syscall.SIGKILL {
		t.Errorf("the server has ended with %v", command.ProcessState)
	}
	exit, ok := errors.AsType[*client.ExitError](c.Wait())
	if !ok || exit.ExitCode != 137 {
		t.Errorf("Wait: %v", exit)
	}
}
