//go:build unix

package session_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"execserver/internal/process"
	"execserver/internal/sandbox"
	"execserver/internal/testkit"
)

// TestRepeatedStartThatHangs repeats a start that does not end over two connections. The
// repetition over a lost connection ends with it, the other one has the result of the start.
func TestRepeatedStartThatHangs(t *testing.T) {
	s, _ := create(t, newSessions(t, nil))
	argv, env := testkit.Child("echo", "hi")
	errRefused := errors.New("refused in the end")
	hanging, release := make(chan struct{}), make(chan struct{})
	spec := process.Spec{Argv: argv, Env: env, Dir: "/"}
	slow := spec
	slow.Sandbox = func() (*sandbox.Confinement, error) {
		close(hanging)
		<-release
		return nil, errRefused
	}
	first := make(chan error, 1)
	go func() { first <- s.Start(t.Context(), "a", "id", slow) }()
	<-hanging
	why := errors.New("the connection is lost")
	lost, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := s.Start(lost, "a", "id", spec); !errors.Is(err, why) {
		t.Errorf("a start over a lost connection: %v", err)
	}
	again := make(chan error, 1)
	go func() { again <- s.Start(t.Context(), "a", "id", spec) }()
	close(release)
	if err := <-first; err == nil || !strings.Contains(err.Error(), errRefused.Error()) {
		t.Errorf("the first start: %v", err)
	}
	if err := <-again; err != nil && !strings.Contains(err.Error(), errRefused.Error()) { // it shares that start, or comes after it
		t.Errorf("the repeated start: %v", err)
	}
}
