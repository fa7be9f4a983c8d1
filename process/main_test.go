//go:build unix

package process_test

import (
	"context"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"execserver/internal/testkit"
	"execserver/process"
	"execserver/protocol"
)

func TestMain(m *testing.M) {
	testkit.Main()
	testkit.InheritNothing()
	testkit.DefaultSignals()
	// The threads that start children live as long as the program, and so does the
	// socket by which they are told to.
	tests := testkit.Ledger(m, "socket:", "socket:")
	runOwning(tests)
	goleak.VerifyTestMain(tests, goleak.IgnoreAnyFunction("execserver/process.runSpawns"))
}

// story is all that a process's log has told.
type story struct {
	output map[string]string // by stream
	all    string
	events []process.Event
	exit   protocol.ExitRecord
	code   int // of exit
}

const testTimeout = 20 * time.Second

// follow reads the events of a process until it is closed, and checks the
// numbers.
func follow(t *testing.T, p *process.Process) story {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	s := story{output: make(map[string]string)}
	for after := uint64(0); ; {
		e, ok := p.Log.Next(after)
		if !ok {
			p.Log.Wait(ctx, after)
			if ctx.Err() != nil {
				t.Fatalf("process not closed after %v; events so far: %d", testTimeout, len(s.events))
			}
			continue
		}
		if e.Seq != after+1 {
			t.Fatalf("event %d follows event %d", e.Seq, after)
		}
		after = e.Seq
		p.Log.Ack(after)
		s.events = append(s.events, e)
		switch e.Kind {
		case process.Output:
			s.output[e.Output.Stream] += string(e.Output.Data)
			s.all += string(e.Output.Data)
		case process.Exited:
			s.exit, s.code = e.Exit, e.Exit.ExitCode
		case process.Closed:
			return s
		}
	}
}

// kinds are the kinds of the events, runs of output counting once.
func (s story) kinds() (kinds []process.EventKind) {
	for _, e := range s.events {
		if n := len(kinds); n > 0 && kinds[n-1] == process.Output && e.Kind == process.Output {
			continue
		}
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// start starts a process that the test ends.
func start(t *testing.T, spec process.Spec, opts *process.Options) *process.Process {
	t.Helper()
	if spec.Dir == "" {
		spec.Dir = t.TempDir()
	}
	p, err := process.Start(spec, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		p.Abandon()
		<-p.Closed()
		p.Release()
	})
	return p
}

// child is the Spec of a child program of the test kit.
func child(name string, args ...string) process.Spec {
	argv, env := testkit.Child(name, args...)
	return process.Spec{Argv: argv, Env: env}
}

// toTheEnd has a process close at the end of its streams, not before.
func toTheEnd(spec process.Spec) process.Spec {
	spec.Drain = protocol.DrainEOF
	return spec
}

// shell is the Spec of a shell command.
func shell(command string) process.Spec {
	return process.Spec{Argv: []string{"/bin/sh", "-c", command}, Env: map[string]string{"PATH": os.Getenv("PATH")}}
}

func write(t *testing.T, p *process.Process, data string) protocol.WriteStatus {
	t.Helper()
	status, cancelled := p.Write([]byte(data), nil, nil, func(wait func()) { wait() })
	if cancelled {
		t.Fatal("write was cancelled")
	}
	return status
}

func newOwnership(t testing.TB, opts *process.OwnershipOptions) *process.Ownership {
	t.Helper()
	o, err := process.NewOwnership(opts)
	if err != nil {
		t.Fatal(err)
	}
	return o
}
