//go:build linux

package server_test

import (
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/protocol"
	"execserver/server"
)

// shell starts a command of the shell and waits until it has closed, unless it
// goes on.
func shell(t *testing.T, c *testclient.Conn, f *follower, id, command string, closes bool) {
	t.Helper()
	call(t, c, protocol.MethodStart, protocol.StartParams{
		ProcessID: id, Cwd: protocol.OSPath("/"), Argv: []string{"/bin/sh", "-c", command},
		Env: map[string]string{"PATH": "/usr/bin:/bin"},
	}, nil)
	if closes {
		f.waitClosed(t, id)
	}
}

// known reports whether a session has not ended.
func known(t *testing.T, url, id string) bool {
	t.Helper()
	c, err := testclient.Dial(testContext(t), url, testclient.Options{Observe: id})
	if err == nil {
		c.Drop()
	}
	return err == nil
}

func testLog(to *testkit.Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(to, nil)) }

// waitEnded waits until a session has ended, without touching it.
func waitEnded(t *testing.T, log *testkit.Buffer, id string) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, "session ended") && strings.Contains(line, id) {
				return nil
			}
		}
		return errors.New("the session has not ended")
	})
}

// A client that closes its connection cleanly and leaves nothing ends its session.
func TestCleanCloseEndsTheSession(t *testing.T) {
	for _, acks := range []bool{false, true} {
		t.Run("acknowledges "+strconv.FormatBool(acks), func(t *testing.T) {
			var log testkit.Buffer
			url := serve(t, &server.Options{Log: testLog(&log), Session: server.SessionOptions{DetachedTTL: time.Hour}})
			f := newFollower()
			c := dial(t, url, testclient.Options{Notify: f.notify, Asks: protocol.ClientCapabilities{ProcessAck: acks}})
			shell(t, c, f, "p", "echo hello", true)
			if acks {
				if err := c.Notify(protocol.MethodAck, protocol.AckParams{ProcessID: "p", Seq: 3}); err != nil {
					t.Fatal(err)
				}
			}
			c.Close()
			waitEnded(t, &log, c.SessionID)
			if known(t, url, c.SessionID) {
				t.Error("the session is still known")
			}
		})
	}
}

// What still runs, in the background too, and what a client has not said to have,
// keeps the session of a client that said farewell.
func TestCleanCloseThatLeavesSomething(t *testing.T) {
	for _, test := range []struct {
		name, command string
		closes, acks  bool
	}{
		{name: "a process", command: "sleep 100"},
		{name: "a background process", command: "sleep 100 >/dev/null 2>&1 &", closes: true},
		{name: "what is not acknowledged", command: "echo hello", closes: true, acks: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log testkit.Buffer
			url := serve(t, &server.Options{Log: testLog(&log), Session: server.SessionOptions{DetachedTTL: time.Hour, MaxSessions: 2}})
			f := newFollower()
			c := dial(t, url, testclient.Options{Notify: f.notify, Asks: protocol.ClientCapabilities{ProcessAck: test.acks}})
			shell(t, c, f, "p", test.command, test.closes)
			c.Close()
			// The one that comes after it ends; this one does not make room either.
			next := dial(t, url, testclient.Options{})
			next.Close()
			waitEnded(t, &log, next.SessionID)
			for range 3 {
				dialSoon(t, url).Drop()
			}
			dialSoon(t, url).Close()
			if !known(t, url, c.SessionID) {
				t.Error("the session has ended")
			}
		})
	}
}

// dialSoon dials until the server has noticed who is gone.
func dialSoon(t *testing.T, url string) (c *testclient.Conn) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() (err error) {
		c, err = testclient.Dial(testContext(t), url, testclient.Options{})
		return err
	})
	return c
}

// At the limit the session that was lost first and holds nothing makes room.
func TestIdleSessionsMakeRoom(t *testing.T) {
	url := serve(t, &server.Options{Session: server.SessionOptions{DetachedTTL: time.Hour, MaxSessions: 3}})
	f := newFollower()
	busy := dial(t, url, testclient.Options{Notify: f.notify})
	shell(t, busy, f, "p", "sleep 100", false)
	var lost []*testclient.Conn
	for range 2 {
		lost = append(lost, dial(t, url, testclient.Options{}))
	}
	if _, err := testclient.Dial(testContext(t), url, testclient.Options{}); err == nil {
		t.Fatal("a session more than the limit")
	}
	for _, c := range append([]*testclient.Conn{busy}, lost...) {
		c.Drop()
	}
	defer dialSoon(t, url).Drop()
	if !known(t, url, busy.SessionID) {
		t.Error("the session of a process that runs made room")
	}
	if known(t, url, lost[0].SessionID) == known(t, url, lost[1].SessionID) {
		t.Error("not one of two idle sessions made room")
	}
}
