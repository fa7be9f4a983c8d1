//go:build linux

package fleet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
)

// waits starts a machine that has to wait for its name, and returns when it says so.
func (n *node) waits(t *testing.T, home, secret string) (log *testkit.Buffer, ended <-chan error) {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	log = new(testkit.Buffer)
	cmd := exec.Command(path, "join", "--name", "box", "--fleet", "nats://"+n.fleet, "--token-file", secret, "--without=cgroups")
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_STATE_HOME=")
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() { end <- cmd.Wait() }() // ends with the test
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	return log, end
}

// typed is a command that says again what is typed.
type typed struct {
	t    *testing.T
	in   io.Writer
	said chan string
}

func newTyped(t *testing.T, env *client.Environment) *typed {
	t.Helper()
	command := env.Command(t.Context(), "cat")
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	w := &typed{t, in, make(chan string, 1)}
	command.Stdout = &lines{f: func(line string) { w.said <- line }}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *typed) says(line string) {
	w.t.Helper()
	if _, err := io.WriteString(w.in, line+"\n"); err != nil {
		w.t.Fatal(err)
	}
	testkit.Within(w.t, "the echo of "+line, func() {
		if got := <-w.said; got != line {
			w.t.Errorf("%q came back for %q", got, line)
		}
	})
}

// TestStorageIsLostBesideAClone has a gateway lose what it has stored, while a clone of a machine
// wants the name of the machine. That has a session: it gets its name again, and the session
// continues.
func TestStorageIsLostBesideAClone(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	n := gateway(t, "--machines", machinesFile(t), "--data", data)
	home, secret := t.TempDir(), testkit.Secret(t, token)
	m := startWith(t, []string{"HOME=" + home, "XDG_STATE_HOME="}, "join", "--name", "box", "--fleet", "nats://"+n.fleet, "--token-file", secret, "--without=cgroups")
	env, err := dialPatiently(t, "ws://"+n.client+"/env/box", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close()
	command := newTyped(t, env)
	command.says("before")

	n.kill(t)
	if err := os.RemoveAll(filepath.Join(data, "jetstream")); err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(t.TempDir(), "clone")
	if out, err := exec.Command("cp", "-a", home, clone).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	log, ended := n.waits(t, clone, secret)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !strings.Contains(log.String(), "cannot connect to the fleet yet") {
			return errors.New(log.String())
		}
		return nil
	})
	n.start(t)
	command.says("after")
	testkit.Within(t, "the refusal of the clone", func() {
		err := <-ended
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
			t.Errorf("the clone ends with %v", err)
		}
	})
	host, _ := os.Hostname()
	for _, want := range []string{"another machine has this name: box is the machine " + host + " since 2", "with 1 session;", "exec-fleet forget box"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is missing in what the clone says:\n%s", want, log)
		}
	}
	command.says("at the end")
	if out, _, _ := fleetCommand(t, n, "ls"); !strings.Contains(out, "\nbox ") {
		t.Errorf("ls: %s", out)
	}
	if text := m.log.String(); strings.Contains(text, "lost its name") {
		t.Errorf("the machine says:\n%s", text)
	}
}

// TestKilledMachineComesBack kills a machine with a session. The next one on the host has the
// name without the wait for that session.
func TestKilledMachineComesBack(t *testing.T) {
	t.Parallel()
	n := gateway(t)
	secret := testkit.Secret(t, n.tokenOf(t, "box"))
	home := []string{"HOME=" + t.TempDir(), "XDG_STATE_HOME="}
	// With a supervisor the machine ends in order, and leaves the fleet.
	args := []string{"join", "--name", "box", "--fleet", "nats://" + n.fleet, "--token-file", secret, "--without=cgroups", "--without=supervisor"}
	m := startWith(t, home, args...)
	listed(t, n, 1)
	env, err := dialPatiently(t, "ws://"+n.client+"/env/box", &client.Options{RecoveryTimeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close()
	newTyped(t, env).says("before")
	testkit.WaitFor(t, testkit.Patience, func() error {
		if out, _, _ := fleetCommand(t, n, "info", "box"); !strings.Contains(out, `"sessions": 1`) {
			return fmt.Errorf("info: %s", out)
		}
		return nil
	})
	m.kill(t)
	m.start(t) // returns when it has joined
	if text := m.log.String(); !strings.Contains(text, "waiting until the machine that has the name has ended") {
		t.Errorf("it does not wait until the first one has been silent for long enough:\n%s", text)
	}
	again, err := dialPatiently(t, "ws://"+n.client+"/env/box", nil)
	if err != nil {
		t.Fatal(err)
	}
	newTyped(t, again).says("after")
	_ = again.Close()
}
