//go:build unix

package session_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"execserver/internal/process"
	"execserver/internal/session"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// panicking is a log that panics once, when a process has started.
type panicking struct {
	slog.Handler
	armed *atomic.Bool
	told  *atomic.Bool // what happened was logged
}

func (h panicking) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h panicking) Enabled(context.Context, slog.Level) bool { return true }

func (h panicking) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "process started" && h.armed.CompareAndSwap(true, false) {
		panic("no log today")
	}
	if strings.Contains(r.Message, "panic") {
		h.told.Store(true)
	}
	return nil
}

// A panic during a start ends the process, and its id can be used again.
func TestPanicDuringStart(t *testing.T) {
	h := panicking{slog.DiscardHandler, new(atomic.Bool), new(atomic.Bool)}
	s, r := create(t, newSessions(t, &session.Options{Log: slog.New(h)}))
	variable, mark := "EXEC_SERVER_TEST_PANIC", t.TempDir()
	argv, env := testkit.Child("idle")
	env[variable] = mark
	spec := process.Spec{Argv: argv, Env: env, Dir: "/"}
	h.armed.Store(true)
	err := s.Start(t.Context(), "a", "first", spec)
	if code(err) != protocol.CodeInternal || !strings.Contains(err.Error(), "no log today") {
		t.Errorf("the start fails with %v", err)
	}
	if !h.told.Load() {
		t.Error("the log tells nothing of the panic")
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if left := testkit.WithVariable(t, variable, mark); len(left) > 0 {
			return fmt.Errorf("the process lives: %s", left)
		}
		return nil
	})
	startChild(t, s, "a", "echo", "hi")
	if got := output(t, r.until(protocol.NotificationClosed)); got != "hi\n" {
		t.Errorf("the next process of that id writes %q", got)
	}
}
