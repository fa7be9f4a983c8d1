//go:build unix

package session_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"execserver/internal/process"
	"execserver/internal/session"
	"execserver/internal/testkit"
	"execserver/protocol"
)

func observe(t *testing.T, sessions *session.Sessions, id string, p *peer) *reader {
	t.Helper()
	_, out, err := sessions.Observe(id, p, false)
	if err != nil {
		t.Fatal(err)
	}
	return &reader{t: t, out: out, peer: p}
}

func writeText(t *testing.T, s *session.Session, id, text string) {
	t.Helper()
	status, _, _ := s.Write(protocol.WriteParams{ProcessID: id, Chunk: []byte(text)}, nil, func(wait func()) { wait() })
	if status != protocol.WriteAccepted {
		t.Fatal(status)
	}
}

// What an observer has not had when it takes over is its own to lose: it is not
// evicted any more, although the owner before had acknowledged it.
func TestTakeOverKeepsWhatTheObserverLacks(t *testing.T) {
	sessions := newSessions(t, &session.Options{RetainedBytes: 4000})
	s, owner := create(t, sessions)
	heir := observe(t, sessions, s.ID, newPeer(true))
	startChild(t, s, "a", "cat")
	first := strings.Repeat("1", 1000)
	writeText(t, s, "a", first)
	for got := 0; got < len(first); {
		got += len(owner.next().data(t))
	}
	if err := sessions.TakeOver(heir.out); err != nil {
		t.Fatal(err)
	}
	if !owner.peer.taken || !owner.peer.byObserver {
		t.Error("the owner before was not told")
	}
	if _, ok := owner.poll(); ok {
		t.Error("the owner before still gets events")
	}
	rest := strings.Repeat("2", 100_000)
	writeText(t, s, "a", rest)
	if err := s.CloseStdin("a"); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error { // the child waits for room
		if n := s.List().Processes[0].RetainedBytes; n < 3000 {
			return fmt.Errorf("%d bytes are retained", n)
		}
		return nil
	})
	heir.ack = true
	if got := output(t, heir.until(protocol.NotificationClosed)); got != first+rest {
		t.Errorf("the heir got %d bytes of %d", len(got), len(first+rest))
	}
}

func TestTakeOverIsForObservers(t *testing.T) {
	sessions := newSessions(t, nil)
	s, owner := create(t, sessions)
	if err := sessions.TakeOver(owner.out); code(err) != protocol.CodeInvalidRequest {
		t.Errorf("by the owner: %v", err)
	}
	gone := observe(t, sessions, s.ID, newPeer(true))
	sessions.Leave(s, gone.out, session.Lost)
	if err := sessions.TakeOver(gone.out); code(err) != protocol.CodeInvalidRequest {
		t.Errorf("by one that has left: %v", err)
	}
	observer := observe(t, sessions, s.ID, newPeer(true))
	sessions.End(s, "test")
	if err := sessions.TakeOver(observer.out); code(err) != protocol.CodeInvalidRequest {
		t.Errorf("of a session that has ended: %v", err)
	}
	if observer.peer.left != "the session has ended" {
		t.Errorf("the observer was told %q", observer.peer.left)
	}
	if _, _, err := sessions.Observe(s.ID, newPeer(true), false); code(err) != protocol.CodeInvalidRequest {
		t.Errorf("observe after the end: %v", err)
	}
}

// When an observer that cannot be resumed leaves, the session stays; when its
// owner does, the session ends.
func TestObserversLeave(t *testing.T) {
	sessions := newSessions(t, nil)
	s, owner := create(t, sessions)
	observer := observe(t, sessions, s.ID, newPeer(true))
	heir := observe(t, sessions, s.ID, newPeer(true))
	sessions.Leave(s, observer.out, session.Final)
	if sessions.Count() != 1 {
		t.Fatal("an observer has ended the session")
	}
	if err := sessions.TakeOver(heir.out); err != nil {
		t.Fatal(err)
	}
	sessions.Leave(s, owner.out, session.Final)
	if sessions.Count() != 1 {
		t.Fatal("an owner before has ended the session")
	}
	sessions.Leave(s, heir.out, session.Final)
	if sessions.Count() != 0 {
		t.Error("the owner has left, and the session goes on")
	}
}

// A process is remembered until its owner knows how it ended, whatever its age,
// and observers that are late learn it all the same.
func TestClosedProcessesWaitForTheirOwner(t *testing.T) {
	sessions := newSessions(t, &session.Options{ClosedTTL: time.Millisecond})
	p := newPeer(true)
	p.capabilities.ProcessAck = true
	s, out, err := sessions.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	owner := &reader{t: t, out: out, peer: p}
	observer := observe(t, sessions, s.ID, newPeer(true))
	startChild(t, s, "a", "exit", "3")
	events := owner.until(protocol.NotificationClosed)
	owner.acknowledge() // the transport's word does not count
	out.Ack(protocol.AckParams{ProcessID: "a", Seq: events[0].Params.Seq})
	time.Sleep(20 * time.Millisecond) // many times as long as it would be remembered
	if len(s.List().Processes) != 1 {
		t.Fatal("forgotten before its end was acknowledged")
	}
	out.Ack(protocol.AckParams{ProcessID: "a", Seq: events[len(events)-1].Params.Seq})
	testkit.WaitFor(t, testkit.Patience, func() error {
		if len(s.List().Processes) > 0 {
			return errors.New("still remembered")
		}
		return nil
	})
	if got := observer.until(protocol.NotificationClosed); len(got) != 2 || got[0].Params.ExitCode != 3 {
		t.Errorf("the observer got %+v", got)
	}
}

// An observer that takes nothing while processes come and go is dismissed before
// what waits for it has no bound.
func TestEndlesslySlowObserverIsDismissed(t *testing.T) {
	sessions := newSessions(t, &session.Options{ClosedTTL: time.Hour, MaxProcesses: 2, MaxClosed: 2})
	s, owner := create(t, sessions)
	slow := observe(t, sessions, s.ID, newPeer(true))
	for i := range 20 {
		startChild(t, s, strconv.Itoa(i), "exit", "0")
		owner.until(protocol.NotificationClosed)
	}
	slow.peer.mu.Lock()
	left := slow.peer.left
	slow.peer.mu.Unlock()
	if left == "" {
		t.Error("nobody told it to go")
	}
	if _, ok := slow.poll(); ok {
		t.Error("it still gets events")
	}
}

// Failures are told to those that asked, the latest of them.
func TestFailures(t *testing.T) {
	sessions := newSessions(t, nil)
	s, owner := create(t, sessions)
	asking := newPeer(true)
	asking.capabilities.ProcessEvents = true
	observer := observe(t, sessions, s.ID, asking)
	startChild(t, s, "a", "idle")
	for i := range 300 {
		if err := s.Start(t.Context(), strconv.Itoa(i), "", process.Spec{Argv: []string{"/no/such"}, Dir: "/"}); code(err) != protocol.CodeInternal {
			t.Fatal(err)
		}
	}
	var failed, omitted, started int
	for e, ok := observer.poll(); ok; e, ok = observer.poll() {
		switch e.Method {
		case protocol.NotificationFailed:
			failed++
			omitted += int(e.Params.Omitted)
		case protocol.NotificationStarted:
			if failed > 1 {
				t.Error("events wait for all failures")
			}
			started++
		}
	}
	if failed+omitted != 300 || omitted == 0 || started != 1 {
		t.Errorf("%d failures, %d omitted, %d started", failed, omitted, started)
	}
	if e, ok := owner.poll(); ok {
		t.Errorf("%s for an owner that did not ask", e.Method)
	}
}

// Of many starts under one startId one starts a process, and all say that it is
// started.
func TestStartOnce(t *testing.T) {
	s, _ := create(t, newSessions(t, nil))
	argv, env := testkit.Child("idle")
	spec := process.Spec{Argv: argv, Env: env, Dir: "/"}
	for round := range 20 {
		id := strconv.Itoa(round)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := s.Start(t.Context(), id, "same", spec); err != nil {
					t.Error(err)
				}
				s.Announce(id)
			})
		}
		wg.Wait()
		if n := len(s.List().Processes); n != round+1 {
			t.Fatalf("%d processes after %d starts", n, round+1)
		}
		if err := s.Start(t.Context(), id, "another", spec); code(err) != protocol.CodeInvalidRequest {
			t.Errorf("another startId: %v", err)
		}
		if err := s.Start(t.Context(), id, "", spec); code(err) != protocol.CodeInvalidRequest {
			t.Errorf("no startId: %v", err)
		}
	}
}

// A start that a client can ask for again goes on when its connection has ended.
func TestStartOutlivesItsConnection(t *testing.T) {
	s, _ := create(t, newSessions(t, nil))
	ended, end := context.WithCancel(t.Context())
	end()
	spec := process.Spec{Argv: []string{"true"}, Env: map[string]string{"PATH": os.Getenv("PATH")}, Dir: "/"}
	if err := s.Start(ended, "a", "", spec); err == nil {
		t.Error("a start that nobody can ask for again goes on without its connection")
	}
	if err := s.Start(ended, "b", "id", spec); err != nil {
		t.Errorf("a start with an id: %v", err)
	}
}

// While detached with eviction allowed, the output of a client that acknowledges
// by itself is kept all the same.
func TestAcknowledgingClientIsNotEvicted(t *testing.T) {
	const size = 2_000_000
	sessions := newSessions(t, &session.Options{RetainedBytes: 200_000, EvictDetached: true})
	p := newPeer(true)
	p.capabilities.ProcessAck = true
	s, out, err := sessions.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	sessions.Leave(s, out, session.Lost)
	startChild(t, s, "a", "flood", strconv.Itoa(size))
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := s.List().Processes[0].RetainedBytes; n < 150_000 {
			return fmt.Errorf("%d bytes are retained", n)
		}
		return nil
	})
	got := 0
	var last uint64
	for closed := false; !closed; {
		// Each connection takes what there is, acknowledges half, and is lost.
		p := newPeer(true)
		p.capabilities.ProcessAck = true
		_, out, err := sessions.Resume(s.ID, p)
		if err != nil {
			t.Fatal(err)
		}
		r := &reader{t: t, out: out, peer: p}
		for range 2 {
			e := r.next()
			if e.Params.Seq <= last {
				continue
			}
			if e.Params.Seq != last+1 {
				t.Fatalf("event %d follows event %d", e.Params.Seq, last)
			}
			last = e.Params.Seq
			got += len(e.data(t))
			if closed = e.Method == protocol.NotificationClosed; closed {
				break
			}
		}
		out.Ack(protocol.AckParams{ProcessID: "a", Seq: last - 1})
		sessions.Leave(s, out, session.Lost)
	}
	if got != size {
		t.Errorf("%d bytes of %d", got, size)
	}
}

// When there are too many closed processes, those go first whose owner knows how
// they ended.
func TestTooManyClosedProcesses(t *testing.T) {
	sessions := newSessions(t, &session.Options{MaxClosed: 3})
	p := newPeer(true)
	p.capabilities.ProcessAck = true
	s, out, err := sessions.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	owner := &reader{t: t, out: out, peer: p}
	for i := range 5 {
		startChild(t, s, strconv.Itoa(i), "exit", "0")
		owner.until(protocol.NotificationClosed)
		if i == 1 || i == 2 {
			out.Ack(protocol.AckParams{ProcessID: strconv.Itoa(i), Seq: 2})
		}
	}
	var left []string
	for _, p := range s.List().Processes {
		left = append(left, p.ProcessID)
	}
	if got := strings.Join(left, " "); got != "0 3 4" {
		t.Errorf("%s are left", got)
	}
}

// TestRevoked has connections that live on for a moment after their credentials were
// revoked, and the sessions with those were ended: they get no session any more.
func TestRevoked(t *testing.T) {
	sessions := newSessions(t, nil)
	s, owner, err := sessions.Create(newPeer(true))
	if err != nil {
		t.Fatal(err)
	}
	_, observer, err := sessions.Observe(s.ID, observing("", ""), false)
	if err != nil {
		t.Fatal(err)
	}
	late := newPeer(true)
	late.revoked.Store(true)
	sessions.EndRevoked("revoked")
	if _, _, err := sessions.Create(late); code(err) != protocol.CodeInvalidRequest {
		t.Errorf("a new session: %v", err)
	}
	sessions.Leave(s, owner, session.Lost)
	if _, _, err := sessions.Resume(s.ID, late); code(err) != protocol.CodeInvalidRequest {
		t.Errorf("a session resumed: %v", err)
	}
	if err := sessions.TakeOver(observer); err != nil { // whose credentials stand
		t.Error(err)
	}
}

// TestTakenOverCredentials has a session taken over: whether it goes on is decided by
// the credentials of its new owner.
func TestTakenOverCredentials(t *testing.T) {
	sessions := newSessions(t, nil)
	former, next := newPeer(true), newPeer(true)
	s, _, err := sessions.Create(former)
	if err != nil {
		t.Fatal(err)
	}
	_, out, err := sessions.Observe(s.ID, next, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := sessions.TakeOver(out); err != nil {
		t.Fatal(err)
	}
	former.revoked.Store(true)
	sessions.EndRevoked("revoked")
	if n := sessions.Count(); n != 1 {
		t.Errorf("%d sessions after the credentials of the former owner were revoked", n)
	}
	next.revoked.Store(true)
	sessions.EndRevoked("revoked")
	if n := sessions.Count(); n != 0 {
		t.Errorf("%d sessions after those of the owner were revoked", n)
	}
}

// TestTakeOverWithOtherRights has an observer of the same name whose credentials allow
// something else than those with which the session was made, as between a change of
// the credentials and the end of the session: what runs in it could do for the
// observer what the credentials do not allow.
func TestTakeOverWithOtherRights(t *testing.T) {
	sessions := newSessions(t, nil)
	owner := newPeer(true)
	owner.principal, owner.rights = "ann", "everything"
	s, out, err := sessions.Create(owner)
	if err != nil {
		t.Fatal(err)
	}
	_, narrow, err := sessions.Observe(s.ID, observing("ann", "little"), false)
	if err != nil {
		t.Fatal(err)
	}
	_, same, err := sessions.Observe(s.ID, observing("ann", "everything"), false)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := sessions.TakeOver(narrow); code(err) != protocol.CodeInvalidRequest {
			t.Errorf("a session with other rights is taken over: %v", err)
		}
		sessions.Leave(s, out, session.Lost)
	}
	if err := sessions.TakeOver(same); err != nil {
		t.Error(err)
	}
}

func observing(principal, rights string) *peer {
	p := newPeer(true)
	p.principal, p.rights = principal, rights
	return p
}
