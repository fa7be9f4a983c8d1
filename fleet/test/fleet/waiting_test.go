//go:build linux

package fleet

import (
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// waiting starts a machine whose gateway does not listen yet, and returns when it says so.
func waiting(t *testing.T, address string) (cmd *exec.Cmd, log *testkit.Buffer) {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	log = new(testkit.Buffer)
	cmd = exec.Command(path, "join", "--fleet", "nats://"+address, "--name", "box", "--token-file", testkit.Secret(t, token), "--without=cgroups")
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !strings.Contains(log.String(), "cannot connect to the fleet yet; trying again") {
			return errors.New(log.String())
		}
		return nil
	})
	return cmd, log
}

// TestMachineBeforeGateway starts a machine before its gateway.
func TestMachineBeforeGateway(t *testing.T) {
	t.Parallel()
	n := &node{client: testkit.FreeAddress(t), fleet: testkit.FreeAddress(t)}
	cmd, _ := waiting(t, n.fleet)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	n.program = start(t, "gateway", "--listen", "ws://"+n.client, "--fleet-listen", "nats://"+n.fleet, "--machines", machinesFile(t), "--data", t.TempDir())
	listed(t, n, 1)
}

// TestSignalWithoutGateway ends a machine that waits for its gateway.
func TestSignalWithoutGateway(t *testing.T) {
	cmd, log := waiting(t, testkit.FreeAddress(t))
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, "the end", func() { _ = cmd.Wait() })
	if !strings.Contains(log.String(), "interrupted while waiting for it") {
		t.Errorf("it says:\n%s", log.String())
	}
}
