package session_test

import (
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/session"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// TestTerminateInBackgroundWithoutDescriptors: what runs in the background is not reported as
// ended when the server cannot signal it for want of descriptors.
func TestTerminateInBackgroundWithoutDescriptors(t *testing.T) {
	t.Parallel()
	if !testkit.WithRefused(t, unix.SYS_PIDFD_OPEN, unix.EMFILE) {
		return
	}
	s, r := create(t, newSessions(t, &session.Options{DrainTimeout: time.Millisecond}))
	startChild(t, s, "held", "hold", "streams", "hup")
	pid, err := strconv.Atoi(strings.TrimSpace(output(t, r.until(protocol.NotificationClosed))))
	if err != nil {
		t.Fatal(err)
	}
	id := s.List().Background[0].ProcessID
	if !s.Terminate(id) {
		t.Error("Terminate says that a process was not running which it could not signal")
	}
	if !s.TerminateGracefully(id, time.Hour) {
		t.Error("TerminateGracefully says that a process was not running which it could not signal")
	}
	if !testkit.Alive(pid) {
		t.Error("the process got a signal by its number alone")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error { // its threads end one by one
		if s.Terminate(id) {
			return errors.New("Terminate says that the process runs, which was killed")
		}
		return nil
	})
}
