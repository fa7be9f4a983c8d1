//go:build unix

package session_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/process"
	"execserver/internal/session"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// keep expects a lease to be granted.
func keep(t *testing.T, sessions *session.Sessions, out *session.Outbox, asked, want time.Duration) {
	t.Helper()
	got, err := sessions.Keep(out, leaseOf(nil, asked))
	if err != nil || got != want {
		t.Fatalf("asked for %s: %s, %v; want %s", asked, got, err, want)
	}
}

// refused expects the code of a refusal, and a text in it.
func refused(t *testing.T, err error, text string) {
	t.Helper()
	if code(err) != protocol.CodeInvalidRequest || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want a refusal: %s", err, text)
	}
}

// leaseOf makes the params of session/keep.
func leaseOf(name *string, keep time.Duration) protocol.KeepParams {
	return protocol.KeepParams{Name: name, KeepMs: uint64(keep.Milliseconds())}
}

// A lease outlives every way in which a connection ends, and the session that it keeps
// ends when it is over.
func TestLease(t *testing.T) {
	for _, test := range []struct {
		name        string
		how         session.Departure
		lease, want time.Duration
	}{
		{"lost", session.Lost, time.Hour, time.Hour},
		{"silent", session.Silent, time.Hour, time.Hour},
		{"a clean close that leaves nothing", session.CleanClose, time.Hour, time.Hour},
		{"shorter than the usual time", session.Lost, time.Second, time.Minute},
		{"longer than allowed", session.Lost, 1000 * time.Hour, 10 * time.Hour},
		{"given up", session.Lost, 0, time.Minute},
		{"given up, and a clean close", session.CleanClose, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sessions := newSessions(t, &session.Options{DetachedTTL: time.Minute, SilentTTL: 2 * time.Minute, MaxKeep: 10 * time.Hour})
				s, r := create(t, sessions)
				keep(t, sessions, r.out, 2*time.Hour, 2*time.Hour)
				keep(t, sessions, r.out, test.lease, min(test.lease, 10*time.Hour))
				// The time counts from the end of each connection.
				time.Sleep(3 * time.Hour)
				sessions.Leave(s, r.out, session.Lost)
				_, out, err := sessions.Resume(s.ID, newPeer(true))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(3 * time.Hour)
				sessions.Leave(s, out, test.how)
				if test.want > 0 {
					time.Sleep(test.want - time.Millisecond)
					if sessions.Count() != 1 {
						t.Fatal("the session has ended too early")
					}
					time.Sleep(2 * time.Millisecond)
				}
				synctest.Wait()
				if sessions.Count() != 0 {
					t.Error("the session has not ended")
				}
			})
		})
	}
}

// A session with a lease makes no room for another, and only some may have one.
func TestLeasesAndRoom(t *testing.T) {
	sessions := newSessions(t, &session.Options{MaxSessions: 4})
	var kept, others []*session.Session
	for i := range 4 {
		s, r := create(t, sessions)
		_, err := sessions.Keep(r.out, leaseOf(nil, time.Hour))
		if i < 2 {
			kept = append(kept, s)
			if err != nil {
				t.Fatal(err)
			}
			keep(t, sessions, r.out, 2*time.Hour, 2*time.Hour) // that is no further one
		} else {
			others = append(others, s)
			refused(t, err, "the server keeps 2 sessions, the limit is 2")
		}
		sessions.Leave(s, r.out, session.Lost)
	}
	for range 2 {
		create(t, sessions)
	}
	if _, _, err := sessions.Create(newPeer(true)); err == nil {
		t.Error("a session with a lease made room")
	}
	for _, s := range others {
		if _, _, err := sessions.Resume(s.ID, newPeer(true)); err == nil {
			t.Error("a session without a lease did not make room")
		}
	}
	_, out, err := sessions.Resume(kept[0].ID, newPeer(true))
	if err != nil {
		t.Fatal(err)
	}
	// A lease that is given up, or ends with its session, is free for another one.
	keep(t, sessions, out, 0, 0)
	sessions.End(kept[1], "test")
	keep(t, sessions, out, time.Hour, time.Hour)
	_, r := create(t, sessions)
	keep(t, sessions, r.out, time.Hour, time.Hour)
}

// No principal gets every lease.
func TestLeasesOfOnePrincipal(t *testing.T) {
	sessions := newSessions(t, &session.Options{MaxSessions: 16})
	ask := func(principal string) error {
		p := newPeer(true)
		p.principal = principal
		_, out, err := sessions.Create(p)
		if err == nil {
			_, err = sessions.Keep(out, leaseOf(nil, time.Hour))
		}
		return err
	}
	for range 4 {
		if err := ask("greedy"); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, ask("greedy"), "4 sessions of this principal, the limit is 4")
	for range 4 {
		if err := ask("modest"); err != nil {
			t.Error(err)
		}
	}
	refused(t, ask("another"), "the server keeps 8 sessions, the limit is 8")
}

// Of connections that ask for a name at the same time one gets it.
func TestNamesOfSessions(t *testing.T) {
	sessions := newSessions(t, nil)
	name := "build"
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	outs := make(chan *session.Outbox, cap(errs))
	for range cap(errs) {
		_, r := create(t, sessions)
		wg.Go(func() {
			_, err := sessions.Keep(r.out, leaseOf(&name, time.Hour))
			if err == nil {
				outs <- r.out
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	granted := 0
	for err := range errs {
		if err == nil {
			granted++
			continue
		}
		refused(t, err, "has the name build already")
	}
	if granted != 1 {
		t.Fatalf("%d sessions have the name", granted)
	}
	owner := <-outs
	if _, err := sessions.Keep(owner, leaseOf(&name, 2*time.Hour)); err != nil {
		t.Errorf("the name again: %v", err)
	}
	keep(t, sessions, owner, time.Hour, time.Hour) // and keeps its name
	_, r := create(t, sessions)
	_, err := sessions.Keep(r.out, leaseOf(&name, time.Hour))
	refused(t, err, "has the name build already")
	stranger := newPeer(true)
	stranger.principal = "another"
	_, out, err := sessions.Create(stranger)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sessions.Keep(out, leaseOf(&name, time.Hour)); err != nil {
		t.Errorf("a name of another principal: %v", err)
	}
	other := "test"
	if _, err := sessions.Keep(owner, leaseOf(&other, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := sessions.Keep(r.out, leaseOf(&name, time.Hour)); err != nil {
		t.Errorf("a name that is free again: %v", err)
	}
}

// A connection that has lost its session changes nothing about its lease.
func TestLeaseOfALostSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sessions := newSessions(t, &session.Options{DetachedTTL: time.Minute})
		s, r := create(t, sessions)
		keep(t, sessions, r.out, time.Hour, time.Hour)
		sessions.Leave(s, r.out, session.Lost)
		for _, lease := range []time.Duration{0, 10 * time.Hour} {
			_, err := sessions.Keep(r.out, leaseOf(nil, lease))
			refused(t, err, "is not this connection's any more")
		}
		_, observer, err := sessions.Observe(s.ID, newPeer(true), false)
		if err != nil {
			t.Fatal(err)
		}
		_, err = sessions.Keep(observer, leaseOf(nil, 0))
		refused(t, err, "is not this connection's any more")
		if err := sessions.TakeOver(observer); err != nil {
			t.Fatal(err)
		}
		_, err = sessions.Keep(r.out, leaseOf(nil, 0))
		refused(t, err, "is not this connection's any more")
		sessions.Leave(s, observer, session.CleanClose)
		time.Sleep(59 * time.Minute)
		if sessions.Count() != 1 {
			t.Error("the session has ended before the lease")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		_, err = sessions.Keep(observer, leaseOf(nil, time.Hour))
		refused(t, err, "has ended")
	})
}

// What ends every session ends one with a lease, too.
func TestLeaseDoesNotOutlive(t *testing.T) {
	t.Run("the longest life of a session", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			sessions := newSessions(t, nil)
			s, r := create(t, sessions)
			sessions.EndAfter(s, 3*time.Hour)
			keep(t, sessions, r.out, time.Hour, time.Hour)
			time.Sleep(time.Hour)
			keep(t, sessions, r.out, 8*time.Hour, 2*time.Hour)
			sessions.Leave(s, r.out, session.CleanClose)
			time.Sleep(2*time.Hour + time.Millisecond)
			synctest.Wait()
			if sessions.Count() != 0 {
				t.Error("the session has not ended")
			}
		})
	})
	t.Run("its credentials", func(t *testing.T) {
		sessions := newSessions(t, nil)
		s, r := create(t, sessions)
		keep(t, sessions, r.out, time.Hour, time.Hour)
		sessions.Leave(s, r.out, session.Lost)
		r.peer.revoked.Store(true)
		sessions.EndRevoked("test")
		if sessions.Count() != 0 {
			t.Error("the session has not ended")
		}
	})
	t.Run("credentials that are revoked at the same time", func(t *testing.T) {
		sessions := newSessions(t, nil)
		_, r := create(t, sessions)
		r.peer.revoked.Store(true)
		_, err := sessions.Keep(r.out, leaseOf(nil, time.Hour))
		refused(t, err, "revoked")
	})
	t.Run("the server", func(t *testing.T) {
		sessions := newSessions(t, nil)
		s, r := create(t, sessions)
		keep(t, sessions, r.out, time.Hour, time.Hour)
		sessions.Leave(s, r.out, session.Lost)
		sessions.Close("test")
		if sessions.Count() != 0 {
			t.Error("the session has not ended")
		}
	})
}

// The output of a closed process can be read for as long as a lease keeps its session,
// even if the owner had it before.
func TestLeaseKeepsOutput(t *testing.T) {
	sessions := newSessions(t, &session.Options{ClosedTTL: time.Millisecond})
	kept, r := create(t, sessions)
	keep(t, sessions, r.out, time.Hour, time.Hour)
	startChild(t, kept, "a", "echo", "hello")
	r.until(protocol.NotificationClosed)
	usual, r2 := create(t, sessions)
	startChild(t, usual, "a", "echo", "hello")
	r2.until(protocol.NotificationClosed)
	forgotten := func(s *session.Session) func() error {
		return func() error {
			if len(s.List().Processes) > 0 {
				return errors.New("the process is still known")
			}
			return nil
		}
	}
	testkit.WaitFor(t, testkit.Patience, forgotten(usual))
	read, err := kept.Peek(t.Context(), protocol.ReadParams{ProcessID: "a"}, 0, func(int) error { return nil })
	if err != nil || len(read.Chunks) != 1 || !strings.HasPrefix(string(read.Chunks[0].Data), "hello") {
		t.Fatalf("the output: %v %v", read, err)
	}
	keep(t, sessions, r.out, 0, 0)
	testkit.WaitFor(t, testkit.Patience, forgotten(kept))
}

// A process may be forgotten while a request waits for room for its output: then there is none
// to be read, and the answer says so.
func TestForgottenWhileReading(t *testing.T) {
	sessions := newSessions(t, &session.Options{MaxClosed: 1})
	s, r := create(t, sessions)
	startChild(t, s, "a", "echo", "hello")
	r.until(protocol.NotificationClosed)
	forget := func(int) error {
		startChild(t, s, "b", "echo", "hello")
		testkit.WaitFor(t, testkit.Patience, func() error {
			if n := len(s.List().Processes); n > 1 {
				return fmt.Errorf("%d processes are known", n)
			}
			return nil
		})
		return nil
	}
	read, err := s.Read(t.Context(), protocol.ReadParams{ProcessID: "a"}, 0, forget)
	if code(err) != protocol.CodeInvalidRequest {
		t.Errorf("the output of a process that is forgotten: %+v, %v", read, err)
	}
}

// Sessions with leases bound what they remember like others, and count a process as
// closed before its owner hears that it is.
func TestLeaseKeepsSoMuch(t *testing.T) {
	const limit = 3
	sessions := newSessions(t, &session.Options{MaxClosed: limit})
	s, r := create(t, sessions)
	keep(t, sessions, r.out, time.Hour, time.Hour)
	for i := range 2 * limit {
		argv, env := testkit.Child("echo", "hello")
		id := fmt.Sprint(i)
		if err := s.Start(t.Context(), id, "", process.Spec{Argv: argv, Env: env, Dir: "/"}); err != nil {
			t.Fatal(err)
		}
		s.Announce(id)
		r.until(protocol.NotificationClosed)
	}
	if n := len(s.List().Processes); n != limit {
		t.Errorf("%d closed processes, want %d", n, limit)
	}
}
