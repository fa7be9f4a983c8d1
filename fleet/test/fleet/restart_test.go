//go:build linux

package fleet

import (
	"errors"
	"io"
	"syscall"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
)

// TestRollingRestart starts the gateways of a cluster again, one after the other, while
// sessions stream and type. No line is lost or comes twice.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	s := newStreaming(t, int(testkit.Number(t, "FLEET_SESSIONS", 20)))
	s.whole()
	for _, n := range s.nodes {
		if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		testkit.Within(t, "the end of a gateway", func() { _ = n.cmd.Wait() })
		if code := n.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("the gateway ends with %d", code)
		}
		n.start(t)
		s.whole() // before the next one
	}
	s.end()
	s.outages.Load().report(t, "three gateways are started again")
}

// TestDrainedMachineEnds drains a machine that has a session. It takes no others, serves the
// one that it has, even over a new connection, and ends with it.
func TestDrainedMachineEnds(t *testing.T) {
	t.Parallel()
	n := gateway(t)
	m := join(t, []*node{n}, "box")
	listed(t, n, 1)
	url := "ws://" + n.client + "/env/box"
	env, err := dialPatiently(t, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close()
	command := env.Command(t.Context(), "cat")
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	echoed := make(chan string, 1)
	command.Stdout = &lines{f: func(line string) { echoed <- line }}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	say := func(line string) {
		t.Helper()
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatal(err)
		}
		testkit.Within(t, "the echo of "+line, func() {
			if got := <-echoed; got != line {
				t.Errorf("%q came back for %q", got, line)
			}
		})
	}
	say("before")
	if _, errOut, code := fleetCommand(t, n, "drain", "box"); code != 0 {
		t.Fatal(errOut)
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		other, err := client.Dial(t.Context(), url, nil)
		if err == nil {
			_ = other.Close()
			return errors.New("the machine takes a new session")
		}
		return nil
	})
	say("while it is drained")
	n.kill(t)
	n.start(t)
	say("over a new connection")
	_ = in.Close()
	if err := command.Wait(); err != nil {
		t.Errorf("the command ends with %v", err)
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
	testkit.Within(t, "the end of the machine", func() { _ = m.cmd.Wait() })
	if code := m.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the machine ends with %d", code)
	}
}
