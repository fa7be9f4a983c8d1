//go:build unix

package process_test

import (
	"testing"

	"execserver/internal/process"
	"execserver/internal/testkit"
	"execserver/internal/testkit/processtest"
	"execserver/protocol"
)

func TestMain(m *testing.M) {
	testkit.Main()
	testkit.InheritNothing()
	testkit.DefaultSignals()
	// The threads that start children live as long as the program, and so does the
	// socket that asks them to.
	tests := testkit.Ledger(m, "socket:", "socket:")
	testkit.VerifyMain(tests)
}

// Short names for what nearly every test does.
var (
	start  = processtest.Start
	follow = processtest.Follow
	child  = processtest.Child
	shell  = processtest.Shell
)

// toTheEnd has a process close at the end of its streams, not before.
func toTheEnd(spec process.Spec) process.Spec {
	spec.Drain = protocol.DrainEOF
	return spec
}

func write(t *testing.T, p *process.Process, data string) protocol.WriteStatus {
	t.Helper()
	status, cancelled, _ := p.Write([]byte(data), nil, nil, func(wait func()) { wait() })
	if cancelled {
		t.Fatal("write was cancelled")
	}
	return status
}

// gone waits for a process to end: a killed one is a zombie for a moment.
