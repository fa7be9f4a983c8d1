//go:build linux

package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/transcript"
	"execserver/protocol"
	"execserver/server"
)

// noSession is initialize for a connection without a session.
var noSession = params{"clientName": "test", "observeSessionId": ""}

// sessionless connects without a session.
func sessionless(t *testing.T, srv transcript.Server) *caller {
	t.Helper()
	c := connect(t, srv)
	if err := c.initialize(noSession); err != nil {
		t.Fatal(err)
	}
	if c.SessionID != "" {
		t.Fatalf("it has session %s", c.SessionID)
	}
	return c
}

// sees returns the ids of the sessions that a client lists, and expects process/list to
// have a process p of each.
func (c *caller) sees() (ids []string) {
	c.t.Helper()
	var sessions protocol.SessionsResult
	c.result(protocol.MethodSessions, nil, &sessions)
	for _, s := range sessions.Sessions {
		ids = append(ids, s.SessionID)
		if s.Running != 1 || s.Own == (s.Principal != "") {
			c.t.Errorf("listed as %+v", s)
		}
	}
	var processes protocol.ListResult
	c.result(protocol.MethodList, protocol.ListParams{All: true}, &processes)
	var with []string
	for _, p := range processes.Processes {
		if p.ProcessID != "p" {
			c.t.Errorf("listed as %+v", p)
		}
		with = append(with, p.SessionID)
	}
	if !slices.Equal(ids, with) {
		c.t.Errorf("the processes of %q, and the sessions %q", with, ids)
	}
	return ids
}

// sleeps makes a client with a process p that runs.
func sleeps(t *testing.T, srv transcript.Server) *caller {
	t.Helper()
	c := newCaller(t, srv, "")
	c.result(protocol.MethodStart, protocol.StartParams{
		ProcessID: "p", Argv: []string{"/bin/sleep", "100"}, Cwd: protocol.OSPath("/"), Env: map[string]string{},
	}, new(protocol.StartResult))
	return c
}

// Tokens list the sessions that they may observe, and no others.
func TestSessionsOfTokens(t *testing.T) {
	as := serveTokens(t, server.Options{}, map[string]string{
		"ann": `scope = ["full"]`, "bob": `scope = ["exec"]`, "observer": `scope = ["observe"]`, "both": `scope = ["exec", "observe"]`,
		"nobody": `scope = ["exec"]`, "reader": "scope = [\"files\"]\nroot = \"/srv\"",
	})
	ann, bob := sleeps(t, as("ann")), sleeps(t, as("bob"))
	both := sleeps(t, as("both"))
	all := []string{ann.SessionID, bob.SessionID, both.SessionID}
	for name, want := range map[string][]string{
		"ann": all[:1], "bob": all[1:2], "observer": all, "both": all, "nobody": nil,
	} {
		if got := sessionless(t, as(name)).sees(); !slices.Equal(got, want) {
			t.Errorf("%s sees %q, want %q", name, got, want)
		}
	}
	for c, want := range map[*caller][]string{ann: all[:1], bob: all[1:2], both: all} {
		if got := c.sees(); !slices.Equal(got, want) {
			t.Errorf("%s sees %q, want %q", c.SessionID, got, want)
		}
	}
	observer := connect(t, as("observer"))
	if err := observer.initialize(params{"clientName": "test", "observeSessionId": bob.SessionID}); err != nil {
		t.Fatal(err)
	}
	if got := observer.sees(); !slices.Equal(got, all) {
		t.Errorf("an observer sees %q, want %q", got, all)
	}
	reader := sessionless(t, as("reader"))
	reader.denied(protocol.MethodSessions, nil, "`session/list`")
	reader.denied(protocol.MethodList, params{"all": true}, "`process/list`")
}

// controls returns the errors of the three ways to control another session.
func (c *caller) controls(sessionID string) (errs []*protocol.Error) {
	c.t.Helper()
	for _, call := range []struct {
		method string
		params any
	}{
		{protocol.MethodSignal, protocol.SignalParams{ProcessID: "p", Signal: "KILL", SessionID: &sessionID}},
		{protocol.MethodTerminate, protocol.TerminateParams{ProcessID: "p", SessionID: &sessionID}},
		{protocol.MethodEndSession, protocol.EndSessionParams{SessionID: sessionID}},
	} {
		errs = append(errs, c.call(call.method, call.params).Error)
	}
	return errs
}

// cannotControl expects the three ways to be refused.
func (c *caller) cannotControl(sessionID, why string) {
	c.t.Helper()
	for _, err := range c.controls(sessionID) {
		if err == nil || err.Code != protocol.CodeInvalidRequest || !strings.Contains(err.Message, why) {
			c.t.Errorf("got %v, want a refusal: %s", err, why)
		}
	}
}

// runs expects the process p of a client to run still.
func (c *caller) runs() {
	c.t.Helper()
	var list protocol.ListResult
	c.result(protocol.MethodList, nil, &list)
	if len(list.Processes) != 1 || list.Processes[0].State != protocol.StateRunning {
		c.t.Errorf("its processes: %+v", list)
	}
}

// Tokens control the sessions of their principal, and no others, even if they see them.
func TestControlOfTokens(t *testing.T) {
	as := serveTokens(t, server.Options{}, map[string]string{
		"ann": `scope = ["full"]`, "bob": `scope = ["exec"]`, "observer": `scope = ["observe"]`, "both": `scope = ["exec", "observe"]`,
		"reader": "scope = [\"files\"]\nroot = \"/srv\"",
	})
	ann := sleeps(t, as("ann"))
	for name, why := range map[string]string{
		"bob":      "unknown session id " + ann.SessionID,
		"observer": "these credentials do not allow `",
		"both":     "belongs to other credentials",
		"reader":   "these credentials do not allow `",
	} {
		sessionless(t, as(name)).cannotControl(ann.SessionID, why)
	}
	newCaller(t, as("both"), "").cannotControl(ann.SessionID, "belongs to other credentials")
	for _, name := range []string{"ann", "both"} {
		observer := connect(t, as(name))
		if err := observer.initialize(params{"clientName": "test", "observeSessionId": ann.SessionID}); err != nil {
			t.Fatal(err)
		}
		observer.cannotControl(ann.SessionID, "this connection observes session")
	}
	ann.runs()
	for _, err := range sessionless(t, as("ann")).controls(ann.SessionID) {
		if err != nil {
			t.Errorf("another client of the same principal: %v", err)
		}
	}
	ann.ended(1008)
}

// A session with a lease can be ended from elsewhere although nobody is attached to it.
func TestEndOfDetachedSession(t *testing.T) {
	srv := serveWebSocket(t, nil)
	c := sleeps(t, srv)
	c.result(protocol.MethodKeep, protocol.KeepParams{KeepMs: 3_600_000}, new(protocol.KeepResult))
	c.Drop()
	other := sessionless(t, srv)
	testkit.WaitFor(t, testkit.Patience, func() error {
		var list protocol.SessionsResult
		other.result(protocol.MethodSessions, nil, &list)
		if len(list.Sessions) != 1 || list.Sessions[0].State != protocol.SessionDetached {
			return fmt.Errorf("listed as %+v", list.Sessions)
		}
		return nil
	})
	other.result(protocol.MethodEndSession, protocol.EndSessionParams{SessionID: c.SessionID}, new(struct{}))
	if got := other.sees(); got != nil {
		t.Errorf("after its end: %q", got)
	}
}

// The audit log says who signalled and ended which session.
func TestControlAudited(t *testing.T) {
	url, audited := serveAudited(t, server.Options{})
	c := sleeps(t, webSocketServer{url: url})
	other := sessionless(t, webSocketServer{url: url})
	for _, err := range other.controls(c.SessionID)[:2] {
		if err != nil {
			t.Fatal(err)
		}
	}
	ended := audited("session ended") // the last one
	signal := audited("signal")
	if signal["session"] != c.SessionID || signal["process"] != "p" || signal["signal"] != "terminate" || ended["session"] != c.SessionID {
		t.Errorf("audited as %v and %v", signal, ended)
	}
	if signal["remote"] == nil || signal["remote"] != ended["remote"] {
		t.Errorf("audited as done by %v and %v", signal["remote"], ended["remote"])
	}
}

// The users of a machine list their own sessions and control no others, even if one of
// them is root.
func TestSystemSessionsOfUsers(t *testing.T) {
	testkit.System(t, testkit.Root)
	uids := []int{61234, 61235, 0}
	srv := server.New(&server.Options{Peers: &server.Peers{UIDs: []uint{61234, 61235}}})
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	socket := listenUnix(t, srv).(unixServer)
	as := func(uid int) transcript.Server { return userServer{socket.path, uid} }
	owners := make(map[int]*caller)
	for _, uid := range uids {
		owners[uid] = sleeps(t, as(uid))
	}
	for _, uid := range uids {
		for _, c := range []*caller{owners[uid], sessionless(t, as(uid))} {
			if got, want := c.sees(), []string{owners[uid].SessionID}; !slices.Equal(got, want) {
				t.Errorf("user %d sees %q, want %q", uid, got, want)
			}
			for other, owner := range owners {
				if other != uid {
					c.cannotControl(owner.SessionID, "unknown session id "+owner.SessionID)
				}
			}
		}
	}
	for _, owner := range owners {
		owner.runs()
	}
}

// Connections without a session count as those with one, which are bounded.
func TestConnectionsWithoutSession(t *testing.T) {
	srv := serveWebSocket(t, &server.Options{Auth: server.Unauthenticated, MaxConnections: 2})
	first := sessionless(t, srv)
	sessionless(t, srv)
	for _, p := range []params{noSession, {"clientName": "test"}} {
		err := connect(t, srv).initialize(p)
		if err == nil || !strings.Contains(err.Message, "limit of 2 connections") {
			t.Errorf("%v: %v", p, err)
		}
	}
	first.Drop()
	newCaller(t, srv, "")
}

// A connection without a session that acknowledges events does no harm, although there is
// nothing to acknowledge.
func TestAckWithoutSession(t *testing.T) {
	var log testkit.Buffer
	c := connect(t, serveWebSocket(t, &server.Options{Auth: server.Unauthenticated, Log: testLog(&log)}))
	if err := c.initialize(params{"clientName": "test", "observeSessionId": "", "capabilities": params{"processAck": true}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Notify(protocol.MethodAck, protocol.AckParams{ProcessID: "p", Seq: 1}); err != nil {
		t.Fatal(err)
	}
	c.sees() // after the notification, in whose order the server reads
	if text := log.String(); strings.Contains(text, "panic") {
		t.Error(text)
	}
}

// userServer connects to a unix socket as a user.
type userServer struct {
	path string
	uid  int
}

func (s userServer) Connect() (conn transcript.Conn, err error) {
	asUser(s.uid, func() { conn, err = transcript.DialUnix(s.path) })
	return conn, err
}
