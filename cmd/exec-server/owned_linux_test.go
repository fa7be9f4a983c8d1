package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// ownedProgram is an exec-server with everything that it starts.
type ownedProgram struct {
	*program
	t *testing.T
}

// startOwned starts exec-server, which ends with the test, as does everything that it
// starts. listens says that it prints where it listens.
func startOwned(t *testing.T, attr *syscall.SysProcAttr, listens bool, args ...string) *ownedProgram {
	t.Helper()
	command := exec.Command("exec-server", args...)
	command.SysProcAttr = attr
	p, err := launch(command, listens)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.signal(syscall.SIGTERM)
		if _, err := p.wait(testkit.Patience); err != nil {
			t.Errorf("exec-server does not end on SIGTERM: %v", err)
		}
		p.kill()
		if t.Failed() {
			t.Logf("stderr of exec-server:\n%s", p.stderr.text())
		}
	})
	return &ownedProgram{p, t}
}

// startListening starts exec-server on a unix socket.
func startListening(t *testing.T, attr *syscall.SysProcAttr, args ...string) *ownedProgram {
	t.Helper()
	return startOwned(t, attr, true, append([]string{"--listen", "unix://" + socketPath(t)}, args...)...)
}

// server returns the process id of the process that serves.
func (p *ownedProgram) server() int {
	p.t.Helper()
	var pid int
	testkit.WaitFor(p.t, testkit.Patience, func() error {
		for _, child := range testkit.Children(p.command.Process.Pid) {
			// Before the child executes its program, it looks like its parent and has its
			// environment.
			env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", child))
			if bytes.Contains(env, []byte("EXEC_SERVER_KEPT=")) {
				pid = child
				return nil
			}
		}
		return errors.New("the supervisor has no server")
	})
	return pid
}

// ending waits for the end of the program.
func (p *ownedProgram) ending() *os.ProcessState {
	p.t.Helper()
	if _, err := p.wait(testkit.Patience); err != nil {
		p.t.Fatal(err)
	}
	return p.command.ProcessState
}

// connect opens a connection and a session.
func (p *ownedProgram) connect() *wireClient {
	p.t.Helper()
	c := connect(p.t, p.program)
	c.handshake("")
	return c
}

// leave ends a connection; on stdio it ends the input of the program.
func (p *ownedProgram) leave(c *wireClient) {
	if p.url == "" {
		_ = p.stdin.Close()
	} else {
		c.Cut()
	}
}

// spec returns the params of process/start for a child program.
func spec(id, child string, args ...string) object {
	argv, env := testkit.Child(child, args...)
	return object{"processId": id, "argv": argv, "cwd": "/", "env": env, "tty": false}
}
