//go:build unix

package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/server"
	"execserver/transport"
)

// recorded are states that a callback has received.
type recorded struct {
	ch      chan client.State
	running atomic.Int32
}

func newRecorded() *recorded { return &recorded{ch: make(chan client.State, 1000)} }

// note is the callback.
func (r *recorded) note(s client.State) {
	if r.running.Add(1) > 1 {
		panic("two callbacks at the same time")
	}
	r.ch <- s
	r.running.Add(-1)
}

func (r *recorded) next(t *testing.T, kind client.StateKind) (s client.State) {
	t.Helper()
	testkit.Within(t, "the state "+kind.String(), func() { s = <-r.ch })
	if s.Kind != kind || s.Since.IsZero() {
		t.Fatalf("state %s since %v, not %s", s.Kind, s.Since, kind)
	}
	return s
}

// The callback is told what happens to the connection, and why.
func TestStates(t *testing.T) {
	t.Parallel()
	r := newRecorded()
	env, p := link(t, &client.Options{OnState: r.note, RecoveryTimeout: testkit.Patience})
	for range 3 {
		p.cut()
		if s := r.next(t, client.Recovering); s.Err == nil || s.Until.Sub(s.Since) != testkit.Patience {
			t.Errorf("recovering until %v after %v, because of %v", s.Until, s.Since, s.Err)
		}
		if s := r.next(t, client.Connected); s.Err != nil || !s.Until.IsZero() {
			t.Errorf("connected: %+v", s)
		}
	}
	_ = env.Close()
	if len(r.ch) > 0 {
		t.Errorf("after Close: %+v", <-r.ch)
	}
	const timeout = time.Second // too short for a recovery on a busy machine
	env, p = link(t, &client.Options{OnState: r.note, RecoveryTimeout: timeout})
	p.setRefuse(true)
	p.cut()
	since := r.next(t, client.Recovering).Since
	s := r.next(t, client.Failed)
	if s.Err == nil || !errors.Is(s.Err, env.Err()) || s.Since.Sub(since) < timeout {
		t.Errorf("failed after %v: %v; the environment: %v", s.Since.Sub(since), s.Err, env.Err())
	}
	_ = env.Close()
	if len(r.ch) > 0 {
		t.Errorf("after the end: %+v", <-r.ch)
	}
}

// Nothing waits for a callback, not even Close, which the callback may call.
func TestStateCallbackBlocks(t *testing.T) {
	t.Parallel()
	var env *client.Environment
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var told atomic.Int32
	env, p := link(t, &client.Options{OnState: func(client.State) {
		told.Add(1)
		once.Do(func() { close(entered) })
		<-release
		_ = env.Close()
	}})
	for range 3 {
		p.cut()
		<-entered
		if out, err := child(env, "echo", "hi").Output(); err != nil || string(out) != "hi\n" {
			t.Errorf("a command meanwhile: %q, %v", out, err)
		}
	}
	testkit.Within(t, "Close", func() { _ = env.Close() })
	close(release)
	if n := told.Load(); n != 1 {
		t.Errorf("%d calls, of which the first blocks", n)
	}
}

// A session that the program has asked for is not replaced by another one.
func TestResumedSessionGone(t *testing.T) {
	t.Parallel()
	first, second := server.New(nil), server.New(nil)
	var conns sync.WaitGroup
	t.Cleanup(func() {
		testkit.Shutdown(t, first)
		testkit.Shutdown(t, second)
		conns.Wait()
	})
	var restarted atomic.Bool
	streams := make(chan io.Closer, 100)
	dial := func(context.Context) (transport.Conn, error) {
		ours, theirs := net.Pipe()
		srv := first
		if restarted.Load() {
			srv = second
		}
		conns.Go(func() { _ = srv.ServeConn(transport.NewStream(theirs)) })
		streams <- ours
		return transport.NewStream(ours), nil
	}
	owner, err := client.Connect(background(t), dial, nil)
	owner = opened(t, owner, err)
	<-streams
	if err := child(owner, "exit", "0").Start(); err != nil { // which keeps the session
		t.Fatal(err)
	}
	if err := owner.Detach(background(t)); err != nil {
		t.Fatal(err)
	}
	env, err := client.Connect(background(t), dial, &client.Options{Session: owner.Session()})
	env = opened(t, env, err)
	restarted.Store(true)
	for len(streams) > 0 {
		_ = (<-streams).Close()
	}
	testkit.Within(t, "the end", func() { <-env.Done() })
	if !errors.Is(env.Err(), client.ErrUnknownSession) {
		t.Errorf("Err: %v", env.Err())
	}
}

// With RecoverWhileKept the client tries for as long as the server says that it keeps
// sessions, and gives up as soon as the session is gone.
func TestRecoverWhileKept(t *testing.T) {
	t.Parallel()
	r := newRecorded()
	first := server.New(&server.Options{Session: server.SessionOptions{DetachedTTL: time.Minute, SilentTTL: 2 * time.Hour}})
	second := server.New(nil)
	var conns sync.WaitGroup
	t.Cleanup(func() {
		testkit.Shutdown(t, first)
		testkit.Shutdown(t, second)
		conns.Wait()
	})
	streams := make(chan io.Closer, 10)
	dials := 0
	dial := func(context.Context) (transport.Conn, error) {
		ours, theirs := net.Pipe()
		srv := first
		if dials++; dials > 2 {
			srv = second // as after a restart
		}
		conns.Go(func() { _ = srv.ServeConn(transport.NewStream(theirs)) })
		streams <- ours
		return transport.NewStream(ours), nil
	}
	env, err := client.Connect(background(t), dial, &client.Options{OnState: r.note, RecoveryTimeout: client.RecoverWhileKept})
	env = opened(t, env, err)
	c := child(env, "idle")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	_ = (<-streams).Close()
	if s := r.next(t, client.Recovering); s.Until.Sub(s.Since) != 2*time.Hour+time.Minute {
		t.Errorf("it tries for %v", s.Until.Sub(s.Since))
	}
	// The first server may refuse once, until it has noticed the break.
	s := <-r.ch
	if s.Kind == client.Connected {
		if err := child(env, "exit", "0").Run(); err != nil {
			t.Error(err)
		}
		_ = (<-streams).Close()
		r.next(t, client.Recovering)
		s = r.next(t, client.Failed)
	}
	if s.Kind != client.Failed || !errors.Is(s.Err, client.ErrUnknownSession) || !errors.Is(env.Err(), client.ErrUnknownSession) {
		t.Errorf("%s: %v; the environment: %v", s.Kind, s.Err, env.Err())
	}
	if err := c.Wait(); !errors.Is(err, client.ErrUnknownSession) {
		t.Errorf("Wait: %v", err)
	}
}

// A lease keeps what Close would end, for the next program, and for as long as it is asked
// for.
func TestKeep(t *testing.T) {
	t.Parallel()
	for name, serve := range listening {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := serve(t, &server.Options{Session: server.SessionOptions{MaxKeep: time.Hour}})
			r := newRecorded()
			p := newProxy(t, url)
			first := dialed(t, p.url, &client.Options{OnState: r.note, RecoveryTimeout: client.RecoverWhileKept})
			c := startCat(t, first)
			if granted, err := first.Keep(background(t), client.Lease{Name: "work", For: 48 * time.Hour}); err != nil || granted != time.Hour {
				t.Fatalf("Keep: %v, %v", granted, err)
			}
			p.cut()
			if s := r.next(t, client.Recovering); s.Until.Sub(s.Since) != time.Hour+time.Minute {
				t.Errorf("it tries for %v", s.Until.Sub(s.Since))
			}
			r.next(t, client.Connected)
			_ = first.Close()
			_ = c.Wait()

			second := dialed(t, url, &client.Options{Session: first.Session()})
			again := attached(t, second, c.ID)
			if err := again.Write(background(t), []byte("kept")); err != nil {
				t.Fatal(err)
			}
			said(t, again, "kept")
			_ = second.Close() // which knows of the lease

			third := dialed(t, url, &client.Options{Session: first.Session()})
			again = attached(t, third, c.ID)
			if err := again.Write(background(t), []byte(" twice")); err != nil {
				t.Fatal(err)
			}
			said(t, again, "kept twice")
			if _, err := third.Keep(background(t), client.Lease{Name: "no/name", For: time.Hour}); err == nil {
				t.Error("a name that is none")
			}
			if granted, err := third.Keep(background(t), client.Lease{}); err != nil || granted != 0 {
				t.Errorf("Keep no longer: %v, %v", granted, err)
			}
			_ = third.Close()
		})
	}
}

// Where sessions end with their connections, nothing can be kept.
func TestKeepNothing(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		if p.name == "ws" || p.name == "unix" || p.name == "command-ws" || p.name == "codex-ws" {
			t.Skip("it keeps sessions")
		}
		if err := env.Detach(background(t)); !errors.As(err, new(*client.UnsupportedError)) {
			t.Errorf("Detach: %v", err)
		}
		needs(t, env, "sessionKeep", func() error { return second1(env.Keep(background(t), client.Lease{For: time.Hour})) })
		t.Error("it announces sessionKeep")
	})
}
