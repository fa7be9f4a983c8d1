//go:build unix

// Package processtest starts processes for tests and reads their logs.
package processtest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"execserver/internal/output"
	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// Story is the complete log of a process.
type Story struct {
	Output map[string]string // by stream
	All    string            // the output of all streams
	Events []output.Event
	Exit   protocol.ExitRecord
}

// Follow reads and acknowledges the events of a process until the process has closed. It
// fails the test if a number is missing.
func Follow(t *testing.T, p *process.Process) Story {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	s := Story{Output: make(map[string]string)}
	for after := uint64(0); ; {
		e, ok := p.Log.Borrow(after)
		if !ok {
			p.Log.Wait(ctx, after)
			if ctx.Err() != nil {
				t.Fatalf("process not closed after %v; events so far: %d", testkit.Patience, len(s.Events))
			}
			continue
		}
		if e.Seq != after+1 {
			t.Fatalf("event %d follows event %d", e.Seq, after)
		}
		after = e.Seq
		borrowed := e
		e.Output.Data = bytes.Clone(e.Output.Data)
		p.Log.Return(borrowed)
		p.Log.Ack(after)
		s.Events = append(s.Events, e)
		switch e.Kind {
		case output.Output:
			s.Output[e.Output.Stream] += string(e.Output.Data)
			s.All += string(e.Output.Data)
		case output.Exited:
			s.Exit = e.Exit
		case output.Closed:
			return s
		}
	}
}

// Kinds returns the kinds of the events. Consecutive output counts as one event.
func (s Story) Kinds() (kinds []output.EventKind) {
	for _, e := range s.Events {
		if n := len(kinds); n > 0 && kinds[n-1] == output.Output && e.Kind == output.Output {
			continue
		}
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// Start starts a process that the test ends.
func Start(t *testing.T, spec process.Spec, opts *process.Options) *process.Process {
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

// Child returns the Spec of a child program of testkit.
func Child(name string, args ...string) process.Spec {
	argv, env := testkit.Child(name, args...)
	return process.Spec{Argv: argv, Env: env}
}

// Shell returns the Spec of a shell command.
func Shell(command string) process.Spec {
	return process.Spec{Argv: []string{"/bin/sh", "-c", command}, Env: map[string]string{"PATH": os.Getenv("PATH")}}
}

// Ownership makes an ownership.
func Ownership(t testing.TB, opts *ownership.Options) *ownership.Ownership {
	t.Helper()
	o, err := ownership.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Owner makes an owner that ends with the test. If o is nil, it makes an ownership, too.
func Owner(t *testing.T, o *ownership.Ownership) *ownership.Owner {
	t.Helper()
	if o == nil {
		o = Ownership(t, nil)
	}
	w := o.NewOwner()
	t.Cleanup(func() {
		w.End(protocol.EndedBySessionExpired)
		w.Wait()
	})
	return w
}

// FirstPid waits for a process to print a process id, and returns that.
func FirstPid(t *testing.T, p *process.Process) (pid int) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() (err error) {
		r := p.Log.Read(0, nil)
		if len(r.Chunks) == 0 {
			return errors.New("no output yet")
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(r.Chunks[0].Data)))
		return err
	})
	return pid
}
