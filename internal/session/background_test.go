//go:build unix

package session_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/internal/process"
	"execserver/internal/session"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// A process whose streams are held in the background counts as live until they
// have ended, and is remembered until then, though it has closed.
func TestHeldProcessesCountAsLive(t *testing.T) {
	sessions := newSessions(t, &session.Options{MaxProcesses: 1, ClosedTTL: time.Millisecond, DrainTimeout: time.Millisecond})
	s, r := create(t, sessions)
	r.ack = true
	startChild(t, s, "held", "hold", "streams", "hup")
	pid, err := strconv.Atoi(strings.TrimSpace(output(t, r.until(protocol.NotificationClosed))))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context(), "refused", "", process.Spec{Argv: []string{"true"}, Dir: "/"}); code(err) != protocol.CodeInvalidRequest || !strings.Contains(err.Error(), "the limit is 1") {
		t.Errorf("start beside a process whose streams are held: %v", err)
	}
	list := s.List()
	if len(list.Processes) != 1 || list.Processes[0].Background == nil || list.Processes[0].Background.Closed ||
		len(list.Background) != 1 || list.Background[0].ParentProcessID != "held" {
		t.Errorf("listed: %+v", list)
	}
	p := protocol.ReadParams{ProcessID: "held"}
	if result, err := s.ReadBackground(context.Background(), p, 0, noReserve); err != nil || result.Closed {
		t.Errorf("background output: %+v, %v", result, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if _, err := s.ReadBackground(context.Background(), p, 0, noReserve); err == nil {
			return errors.New("still remembered")
		}
		return nil
	})
	startChild(t, s, "next", "echo", "hello")
}

// The end of a session ends what is in the background, and the reading of it.
func TestEndOfSessionEndsTheBackground(t *testing.T) {
	sessions := newSessions(t, &session.Options{DrainTimeout: time.Millisecond})
	s, r := create(t, sessions)
	before := testkit.Descriptors(t)
	startChild(t, s, "held", "hold", "streams", "hup")
	pid, err := strconv.Atoi(strings.TrimSpace(output(t, r.until(protocol.NotificationClosed))))
	if err != nil {
		t.Fatal(err)
	}
	if now := testkit.Descriptors(t); now < before+2 || !testkit.Alive(pid) {
		t.Errorf("%d descriptors, %d before, alive: %v", now, before, testkit.Alive(pid))
	}
	answered := make(chan error, 1)
	go func() {
		_, err := s.ReadBackground(context.Background(), protocol.ReadParams{ProcessID: "held"}, time.Hour, noReserve)
		answered <- err
	}()
	sessions.End(s, "test")
	sessions.Wait()
	if testkit.Alive(pid) {
		t.Error("the background process lives")
	}
	select {
	case <-answered:
	case <-time.After(testkit.Patience):
		t.Error("a read of the background output waits for ever")
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if now := testkit.Descriptors(t); now > before {
			return fmt.Errorf("%d descriptors, %d before", now, before)
		}
		return nil
	})
}
