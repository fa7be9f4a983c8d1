//go:build unix

package session_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"execserver/internal/process"
	"execserver/internal/session"
	"execserver/internal/testkit"
	"execserver/protocol"
)

func TestMain(m *testing.M) {
	testkit.Main()
	testkit.DefaultSignals()
	// The thread that spawns children must live as long as the program.
	testkit.VerifyMain(testkit.Ledger(m, "socket:", "socket:"))
}

// peer is a connection that is not there: the test takes the events itself.
type peer struct {
	alive        bool
	capabilities protocol.ClientCapabilities
	principal    string
	rights       string
	revoked      atomic.Bool
	woken        chan struct{}
	asked        atomic.Int64 // for acknowledgements

	mu         sync.Mutex
	taken      bool
	byObserver bool
	left       string
}

func newPeer(alive bool) *peer { return &peer{alive: alive, woken: make(chan struct{}, 1)} }

func (p *peer) Wake() {
	select {
	case p.woken <- struct{}{}:
	default:
	}
}

func (p *peer) Puller() session.Puller { return p }

func (p *peer) WantAck() { p.asked.Add(1) }

// forget returns how often WantAck was called since.
func (p *peer) forget() (asked int) {
	return int(p.asked.Swap(0))
}

func (p *peer) Probe() bool { return p.alive }

func (p *peer) Name() string { return "test" }

func (p *peer) Capabilities() protocol.ClientCapabilities { return p.capabilities }

func (p *peer) Credentials() session.Credentials {
	return session.Credentials{Principal: p.principal, QuotaKey: p.principal, Rights: p.rights, Valid: func() bool { return !p.revoked.Load() }}
}

func (p *peer) TakenOver(_ string, byObserver bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken, p.byObserver = true, byObserver
}

func (p *peer) Disconnect(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = reason
}

// event is a notification as it went out.
type event struct {
	Method string
	Params struct {
		ProcessID string `json:"processId"`
		Seq       uint64
		Chunk     string
		ExitCode  int

		FirstSeq, DroppedBytes, Omitted uint64
	}
}

func (e event) data(t *testing.T) string {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(e.Params.Chunk)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// reader takes the events of an outbox as a connection's writer does.
type reader struct {
	t    *testing.T
	out  *session.Outbox
	peer *peer
	sent uint64 // number of events
	ack  bool   // acknowledge at once
}

// acknowledge pings and answers.
func (r *reader) acknowledge() {
	r.out.Pinged(r.sent)
	r.out.Acknowledged(r.sent)
}

func (r *reader) next() event {
	r.t.Helper()
	deadline := time.After(testkit.Patience)
	for {
		if e, ok := r.poll(); ok {
			return e
		}
		select {
		case <-r.peer.woken:
		case <-deadline:
			r.t.Fatal("no event")
		}
	}
}

func (r *reader) poll() (e event, ok bool) {
	r.t.Helper()
	frame, ok := r.out.AppendEvent(nil)
	if !ok {
		return e, false
	}
	r.sent++
	if r.ack {
		r.acknowledge()
	}
	if err := json.Unmarshal(frame, &e); err != nil {
		r.t.Fatalf("%s: %v", frame, err)
	}
	return e, true
}

// until takes events up to the one with the given method.
func (r *reader) until(method string) (events []event) {
	r.t.Helper()
	for {
		e := r.next()
		events = append(events, e)
		if e.Method == method {
			return events
		}
	}
}

func output(t *testing.T, events []event) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString(e.data(t))
	}
	return b.String()
}

// newSessions makes sessions that the test ends.
func newSessions(t *testing.T, opts *session.Options) *session.Sessions {
	t.Helper()
	s := session.New(opts)
	t.Cleanup(func() {
		s.Close("end of test")
		s.Wait()
	})
	return s
}

func create(t *testing.T, s *session.Sessions) (*session.Session, *reader) {
	t.Helper()
	p := newPeer(true)
	session, out, err := s.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	return session, &reader{t: t, out: out, peer: p, ack: true}
}

func startChild(t *testing.T, s *session.Session, id, name string, args ...string) {
	t.Helper()
	argv, env := testkit.Child(name, args...)
	if err := s.Start(t.Context(), id, "", process.Spec{Argv: argv, Env: env, Dir: "/", PipeStdin: true}); err != nil {
		t.Fatal(err)
	}
	s.Announce(id)
}

func code(err error) protocol.Code {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// A process that has filled its retention before its start is answered is not
// forgotten: what it waits for is asked for again when its output goes out.
func TestOutputThatWaitedForTheAnnouncement(t *testing.T) {
	s, r := create(t, newSessions(t, &session.Options{RetainedBytes: 10_000}))
	r.ack = false
	argv, env := testkit.Child("flood", "100000")
	if err := s.Start(t.Context(), "a", "", process.Spec{Argv: argv, Env: env, Dir: "/"}); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := s.List().Processes[0].RetainedBytes; n < 10_000 {
			return fmt.Errorf("%d bytes are retained", n)
		}
		return nil
	})
	asked := r.peer.asked.Load()
	s.Announce("a")
	r.next()
	for e, ok := r.poll(); ok; e, ok = r.poll() {
		t.Logf("event %d", e.Params.Seq)
	}
	testkit.WaitFor(t, testkit.Patience, func() error { // it may begin to wait only now
		if r.peer.asked.Load() == asked {
			return errors.New("nobody asked for an acknowledgement of what was sent")
		}
		return nil
	})
	r.ack = true
	r.acknowledge()
	r.until(protocol.NotificationClosed)
}

// A client whose transport answers no pings costs no more than the processes that are
// remembered anyway, and one whose transport does costs nothing.
func TestUnansweredPings(t *testing.T) {
	const closed = 3
	s, r := create(t, newSessions(t, &session.Options{MaxClosed: closed}))
	r.ack = false
	for i := range 20 {
		startChild(t, s, strconv.Itoa(i), "echo", "hello")
		r.until(protocol.NotificationClosed)
		if i < 2 { // of the pings that wait at the same time
			r.out.Pinged(r.sent)
		}
		if n := r.out.Unacknowledged(); n > closed {
			t.Fatalf("%d processes are remembered after %d", n, i+1)
		}
	}
	r.acknowledge()
	if n := r.out.Unacknowledged(); n != 0 {
		t.Errorf("%d processes are remembered when everything is acknowledged", n)
	}
}

// An owner that does not take the events of its processes cannot start any number of them.
func TestOwnerThatTakesNothing(t *testing.T) {
	const limit = 2 + 2*1
	s, r := create(t, newSessions(t, &session.Options{MaxProcesses: 2, MaxClosed: 1}))
	argv, env := testkit.Child("exit", "0")
	spec := process.Spec{Argv: argv, Env: env, Dir: "/"}
	start := func(i int) error {
		id := strconv.Itoa(i)
		if err := s.Start(t.Context(), id, "", spec); err != nil {
			return err
		}
		s.Announce(id)
		testkit.WaitFor(t, testkit.Patience, func() error {
			for _, p := range s.List().Processes {
				if p.ProcessID == id && p.State != protocol.StateClosed {
					return errors.New("it runs")
				}
			}
			return nil
		})
		return nil
	}
	for i := range limit {
		if err := start(i); err != nil {
			t.Fatal(err)
		}
	}
	want := "process 4 refused: the connection has not taken the events of 4 processes, the limit is 4"
	if err := start(limit); err == nil || err.Error() != want {
		t.Errorf("one more: %v", err)
	}
	for range limit { // also those of which the session has forgotten the process
		r.until(protocol.NotificationClosed)
	}
	for _, ok := r.poll(); ok; _, ok = r.poll() {
		t.Error("one more event")
	}
	if err := start(limit); err != nil {
		t.Error(err)
	}
}

func TestEventsGoOutInOrder(t *testing.T) {
	s, r := create(t, newSessions(t, nil))
	startChild(t, s, "a", "numbers", "20000")
	events := r.until(protocol.NotificationClosed)
	for i, e := range events {
		if e.Params.Seq != uint64(i+1) || e.Params.ProcessID != "a" {
			t.Fatalf("event %d has number %d", i+1, e.Params.Seq)
		}
	}
	if exited := events[len(events)-2]; exited.Method != protocol.NotificationExited {
		t.Errorf("%s before closed", exited.Method)
	}
	var want strings.Builder
	for i := range 20000 {
		fmt.Fprintln(&want, i)
	}
	if got := output(t, events); got != want.String() {
		t.Errorf("%d bytes of output, want %d", len(got), want.Len())
	}
}

// No event goes out before the caller has had its answer to the start.
func TestEventsWaitForTheAnnouncement(t *testing.T) {
	s, r := create(t, newSessions(t, nil))
	argv, env := testkit.Child("echo", "hi")
	if err := s.Start(t.Context(), "a", "", process.Spec{Argv: argv, Env: env, Dir: "/"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	for closed := false; !closed; {
		result, err := s.Read(ctx, protocol.ReadParams{ProcessID: "a", AfterSeq: ptr[uint64](2)}, time.Second, noReserve)
		if err != nil {
			t.Fatal(err)
		}
		closed = result.Closed
	}
	if e, ok := r.poll(); ok {
		t.Fatalf("%s went out", e.Method)
	}
	s.Announce("a")
	if events := r.until(protocol.NotificationClosed); len(events) != 3 {
		t.Errorf("%d events", len(events))
	}
}

// A process that has used up its room before its start was answered has to be
// acknowledged all the same: until then there is nothing that could be.
func TestWantAckAfterTheAnnouncement(t *testing.T) {
	for range 10 {
		s, r := create(t, newSessions(t, &session.Options{RetainedBytes: 1000}))
		argv, env := testkit.Child("flood", "1000000")
		if err := s.Start(t.Context(), "a", "", process.Spec{Argv: argv, Env: env, Dir: "/"}); err != nil {
			t.Fatal(err)
		}
		testkit.WaitFor(t, testkit.Patience, func() error {
			result, err := s.Read(context.Background(), protocol.ReadParams{ProcessID: "a"}, 0, noReserve)
			if err != nil {
				t.Fatal(err)
			}
			bytes := 0
			for _, chunk := range result.Chunks {
				bytes += len(chunk.Data)
			}
			if bytes < 1000 {
				return fmt.Errorf("%d bytes retained", bytes)
			}
			return nil
		})
		r.peer.forget()
		s.Announce("a")
		testkit.WaitFor(t, testkit.Patience, func() error {
			if r.peer.forget() == 0 {
				return errors.New("nobody was asked for an acknowledgement")
			}
			return nil
		})
	}
}

func noReserve(int) error { return nil }

func ptr[T any](v T) *T { return &v }

func TestResume(t *testing.T) {
	sessions := newSessions(t, nil)
	if _, _, err := sessions.Resume("nope", newPeer(true)); code(err) != protocol.CodeInvalidRequest || err.Error() != "unknown session id nope" {
		t.Errorf("unknown session: %v", err)
	}
	s, r := create(t, sessions)
	_, _, err := sessions.Resume(s.ID, newPeer(true))
	if want := "session " + s.ID + " is already attached to another connection"; code(err) != protocol.CodeSessionAttached || err.Error() != want {
		t.Errorf("attached session: %v", err)
	}
	sessions.Leave(s, r.out, session.Lost)
	again, out, err := sessions.Resume(s.ID, newPeer(true))
	if err != nil || again != s {
		t.Fatalf("resume of a detached session: %v", err)
	}
	sessions.Leave(s, r.out, session.Lost) // late, by a connection that is not attached any more
	if _, _, err := sessions.Resume(s.ID, newPeer(true)); code(err) != protocol.CodeSessionAttached {
		t.Errorf("a late detach has detached the successor: %v", err)
	}
	sessions.Leave(s, out, session.Lost)
	sessions.End(s, "test")
	if _, _, err := sessions.Resume(s.ID, newPeer(true)); code(err) != protocol.CodeInvalidRequest {
		t.Errorf("ended session: %v", err)
	}
}

// A half-open connection does not keep its session.
func TestResumeTakesOverADeadConnection(t *testing.T) {
	sessions := newSessions(t, nil)
	dead := newPeer(false)
	s, _, err := sessions.Create(dead)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := sessions.Resume(s.ID, newPeer(true)); err != nil {
		t.Fatal(err)
	}
	if !dead.taken {
		t.Error("the dead connection was not told")
	}
}

func TestOneOfManyResumesWins(t *testing.T) {
	sessions := newSessions(t, nil)
	for _, dead := range []bool{false, true} {
		s, out, err := sessions.Create(newPeer(!dead))
		if err != nil {
			t.Fatal(err)
		}
		if !dead {
			sessions.Leave(s, out, session.Lost)
		}
		errs := make(chan error)
		const rivals = 8
		for range rivals {
			go func() {
				_, _, err := sessions.Resume(s.ID, newPeer(true))
				errs <- err
			}()
		}
		won := 0
		for range rivals {
			switch err := <-errs; {
			case err == nil:
				won++
			case code(err) != protocol.CodeSessionAttached:
				t.Errorf("loser got %v", err)
			}
		}
		if won != 1 {
			t.Errorf("%d of %d resumes won", won, rivals)
		}
	}
}

// What the owner has not acknowledged is sent again after a resume, without a
// gap, whatever was produced meanwhile.
func TestResumeDeliversWhatWasNotAcknowledged(t *testing.T) {
	sessions := newSessions(t, nil)
	s, r := create(t, sessions)
	startChild(t, s, "a", "cat")
	write := func(text string) {
		t.Helper()
		status, _, _ := s.Write(protocol.WriteParams{ProcessID: "a", Chunk: []byte(text)}, nil, func(wait func()) { wait() })
		if status != protocol.WriteAccepted {
			t.Fatal(status)
		}
	}
	write("one")
	if got := r.next().data(t); got != "one" {
		t.Fatalf("first event %q", got)
	}
	r.ack = false
	write("two")
	second := r.next()
	sessions.Leave(s, r.out, session.Lost)
	if _, ok := r.poll(); ok {
		t.Error("a detached outbox still has events")
	}
	r.acknowledge() // late, from the dead connection
	write("three")
	p := newPeer(true)
	_, out, err := sessions.Resume(s.ID, p)
	if err != nil {
		t.Fatal(err)
	}
	after := &reader{t: t, out: out, peer: p, ack: true}
	var got string
	for seq := second.Params.Seq; len(got) < len("twothree"); seq++ {
		e := after.next()
		if e.Params.Seq != seq {
			t.Fatalf("event %d, want %d", e.Params.Seq, seq)
		}
		got += e.data(t)
	}
	if got != "twothree" {
		t.Errorf("after the resume: %q", got)
	}
}

// While detached, a child whose room is used up blocks; with EvictDetached it
// runs on, and the reader is told what was dropped.
func TestDetachedOutput(t *testing.T) {
	for _, evict := range []bool{false, true} {
		t.Run(fmt.Sprintf("evict=%v", evict), func(t *testing.T) {
			sessions := newSessions(t, &session.Options{RetainedBytes: 100_000, EvictDetached: evict})
			s, r := create(t, sessions)
			sessions.Leave(s, r.out, session.Lost)
			const size = 3_000_000
			startChild(t, s, "a", "flood", strconv.Itoa(size))
			if evict {
				testkit.WaitFor(t, testkit.Patience, func() error {
					if _, exited := progress(t, s); !exited {
						return errors.New("the child is blocked")
					}
					return nil
				})
			}
			p := newPeer(true)
			_, out, err := sessions.Resume(s.ID, p)
			if err != nil {
				t.Fatal(err)
			}
			after := &reader{t: t, out: out, peer: p, ack: true}
			got := len(output(t, after.until(protocol.NotificationClosed)))
			dropped, _ := progress(t, s)
			switch {
			case !evict && got != size:
				t.Errorf("%d bytes arrived of %d", got, size)
			case evict && (dropped == 0 || got+int(dropped) < size):
				t.Errorf("%d bytes arrived and %d were dropped of %d", got, dropped, size)
			}
		})
	}
}

func progress(t *testing.T, s *session.Session) (dropped uint64, exited bool) {
	t.Helper()
	result, err := s.Read(context.Background(), protocol.ReadParams{ProcessID: "a", AfterSeq: ptr[uint64](1 << 60)}, 0, noReserve)
	if err != nil {
		t.Fatal(err)
	}
	return result.DroppedBytes, result.Exit != nil
}

// A small read of a large log needs little room for its answer.
func TestReadReservesWhatItTells(t *testing.T) {
	s, _ := create(t, newSessions(t, nil))
	startChild(t, s, "a", "flood", "2000000")
	testkit.WaitFor(t, testkit.Patience, func() error {
		if _, exited := progress(t, s); !exited {
			return errors.New("it has not exited")
		}
		return nil
	})
	read := func(maxBytes *uint64) (reserved, told int) {
		reserve := func(n int) error { reserved += n; return nil }
		result, err := s.Read(context.Background(), protocol.ReadParams{ProcessID: "a", MaxBytes: maxBytes}, 0, reserve)
		if err != nil {
			t.Fatal(err)
		}
		for _, chunk := range result.Chunks {
			told += len(chunk.Data)
		}
		return reserved, told
	}
	if reserved, told := read(ptr[uint64](1000)); reserved > 2*told+4096 {
		t.Errorf("%d bytes were reserved to tell %d", reserved, told)
	}
	if reserved, told := read(nil); reserved < told {
		t.Errorf("only %d bytes were reserved to tell %d", reserved, told)
	}
}

// Processes take turns: a flood does not keep another's output waiting.
func TestTurns(t *testing.T) {
	s, r := create(t, newSessions(t, nil))
	startChild(t, s, "flood", "flood", "100000000")
	for r.next().Params.ProcessID != "flood" {
	}
	startChild(t, s, "quick", "echo", "hi")
	testkit.WaitFor(t, testkit.Patience, func() error {
		result, err := s.Read(context.Background(), protocol.ReadParams{ProcessID: "quick"}, 0, noReserve)
		if err == nil && !result.Closed {
			err = errors.New("not closed")
		}
		return err
	})
	for i := range 8 {
		if e := r.next(); e.Params.ProcessID == "quick" {
			break
		} else if i == 7 {
			t.Error("eight events of the flood went first")
		}
	}
}

func TestLimits(t *testing.T) {
	sessions := newSessions(t, &session.Options{MaxSessions: 2, MaxProcesses: 2})
	s, r := create(t, sessions)
	create(t, sessions)
	if _, _, err := sessions.Create(newPeer(true)); err == nil || !strings.Contains(err.Error(), "the limit is 2") {
		t.Errorf("third session: %v", err)
	}
	startChild(t, s, "a", "idle")
	startChild(t, s, "b", "idle")
	err := s.Start(t.Context(), "c", "", process.Spec{Argv: []string{"true"}, Dir: "/"})
	if err == nil || !strings.Contains(err.Error(), "the limit is 2") {
		t.Errorf("third process: %v", err)
	}
	s.Terminate("a")
	r.until(protocol.NotificationClosed)
	startChild(t, s, "c", "idle")
}

func TestProcessIDs(t *testing.T) {
	sessions := newSessions(t, &session.Options{ClosedTTL: 50 * time.Millisecond})
	s, r := create(t, sessions)
	startChild(t, s, "a", "echo", "one")
	if err := s.Start(t.Context(), "a", "", process.Spec{Argv: []string{"true"}, Dir: "/"}); err == nil || err.Error() != "process a already exists" {
		t.Errorf("id in use: %v", err)
	}
	if err := s.Start(t.Context(), "b", "", process.Spec{Argv: []string{"nope"}, Dir: "/"}); code(err) != protocol.CodeInternal {
		t.Errorf("failed start: %v", err)
	}
	startChild(t, s, "b", "echo", "two") // a failed start leaves the id free
	r.until(protocol.NotificationClosed)
	r.until(protocol.NotificationClosed)
	testkit.WaitFor(t, testkit.Patience, func() error {
		_, err := s.Read(context.Background(), protocol.ReadParams{ProcessID: "a"}, 0, noReserve)
		if err == nil {
			return errors.New("still remembered")
		}
		if err.Error() != "unknown process id a" {
			t.Errorf("forgotten process: %v", err)
		}
		return nil
	})
	startChild(t, s, "a", "echo", "again")
	// Another session has names of its own.
	other, _ := create(t, sessions)
	startChild(t, other, "a", "echo", "other")
}

// A session that nobody comes back to dies with everything in it: what runs,
// and what commands that closed long ago left behind.
func TestExpiry(t *testing.T) {
	sessions := newSessions(t, &session.Options{DetachedTTL: 100 * time.Millisecond, ClosedTTL: time.Millisecond})
	s, r := create(t, sessions)
	startChild(t, s, "background", "hold")
	pid, err := strconv.Atoi(strings.TrimSpace(output(t, r.until(protocol.NotificationClosed))))
	if err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if _, err := s.Read(context.Background(), protocol.ReadParams{ProcessID: "background"}, 0, noReserve); err == nil {
			return errors.New("still remembered")
		}
		return nil
	})
	startChild(t, s, "running", "hold", "streams")
	var second bytes.Buffer
	for !strings.Contains(second.String(), "\n") {
		second.WriteString(r.next().data(t))
	}
	held, err := strconv.Atoi(strings.TrimSpace(second.String()))
	if err != nil {
		t.Fatal(err)
	}
	if !testkit.Alive(pid) || !testkit.Alive(held) {
		t.Fatal("a background process is gone before the session")
	}
	sessions.Leave(s, r.out, session.Lost)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if testkit.Alive(pid) || testkit.Alive(held) || sessions.Count() > 0 {
			return errors.New("something lives on")
		}
		return nil
	})
	if _, _, err := sessions.Resume(s.ID, newPeer(true)); code(err) != protocol.CodeInvalidRequest {
		t.Errorf("resume after expiry: %v", err)
	}
}

// A resume just before the expiry keeps the session.
func TestResumeStopsTheClock(t *testing.T) {
	sessions := newSessions(t, &session.Options{DetachedTTL: 30 * time.Millisecond})
	for range 20 {
		s, r := create(t, sessions)
		startChild(t, s, "a", "idle")
		sessions.Leave(s, r.out, session.Lost)
		time.Sleep(29 * time.Millisecond) // as close to the expiry as it gets
		_, _, err := sessions.Resume(s.ID, newPeer(true))
		_, readErr := s.Read(context.Background(), protocol.ReadParams{ProcessID: "a"}, 0, noReserve)
		if err == nil && readErr != nil {
			t.Fatalf("resumed, but %v", readErr)
		}
		if err != nil && code(err) != protocol.CodeInvalidRequest {
			t.Fatal(err)
		}
		if err == nil {
			result, err := s.Read(context.Background(), protocol.ReadParams{ProcessID: "a"}, 100*time.Millisecond, noReserve)
			if err != nil || result.Exit != nil {
				t.Fatalf("the session was resumed and its process killed: %+v, %v", result, err)
			}
		}
		sessions.End(s, "test")
	}
}
