//go:build linux

package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/protocol"
	"execserver/server"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

// serve starts a server that the test ends, and returns its URL.
func serve(t *testing.T, opts *server.Options) string {
	t.Helper()
	opts.Auth = server.Unauthenticated
	srv := server.New(opts)
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	return listenWebSocket(t, srv).(webSocketServer).url
}

// follower takes the events of one connection and checks what every connection
// may rely on: numbers without gaps but for those that are told, and how many
// bytes those gaps have.
type follower struct {
	release func() // lets a follower made by newHeldFollower take its events
	gate    chan struct{}

	mu      sync.Mutex
	seqs    map[string]uint64
	bytes   map[string]uint64 // output taken
	dropped map[string]uint64
	data    map[string]*bytes.Buffer // kept where the test put a buffer
	closed  map[string]int           // exit codes of the processes that have closed
	exits   map[string]int
	others  []string // methods of notifications without a number
	err     error
}

func newFollower() *follower {
	f := newHeldFollower()
	f.release()
	return f
}

// newHeldFollower makes a follower that takes nothing until it is released.
func newHeldFollower() *follower {
	gate := make(chan struct{})
	return &follower{
		gate: gate, release: sync.OnceFunc(func() { close(gate) }),
		seqs: make(map[string]uint64), bytes: make(map[string]uint64), dropped: make(map[string]uint64),
		data: make(map[string]*bytes.Buffer), closed: make(map[string]int), exits: make(map[string]int),
	}
}

func (f *follower) notify(method string, params json.RawMessage) {
	<-f.gate
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.take(method, params); err != nil && f.err == nil {
		f.err = err
	}
}

func (f *follower) take(method string, params json.RawMessage) error {
	var p struct {
		ProcessID                   string
		Seq, FirstSeq, DroppedBytes uint64
		ExitCode                    int
		Chunk                       []byte
	}
	if method == protocol.NotificationOutput {
		output, err := protocol.DecodeParams[protocol.Output](params)
		if err != nil {
			return err
		}
		p.ProcessID, p.Seq, p.Chunk = output.ProcessID, output.Seq, output.Data
	} else if err := json.Unmarshal(params, &p); err != nil {
		return err
	}
	if method == protocol.NotificationDropped {
		f.dropped[p.ProcessID] += p.DroppedBytes
		if p.FirstSeq <= f.seqs[p.ProcessID]+1 {
			return fmt.Errorf("dropped up to %d after event %d", p.FirstSeq, f.seqs[p.ProcessID])
		}
		f.seqs[p.ProcessID] = p.FirstSeq - 1
		return nil
	}
	if p.Seq == 0 {
		f.others = append(f.others, method)
		return nil
	}
	if last, ok := f.seqs[p.ProcessID]; p.Seq <= last {
		return nil // again, after a take-over
	} else if ok && p.Seq != last+1 {
		return fmt.Errorf("event %d follows event %d", p.Seq, last)
	}
	f.seqs[p.ProcessID] = p.Seq
	f.bytes[p.ProcessID] += uint64(len(p.Chunk))
	if b := f.data[p.ProcessID]; b != nil {
		b.Write(p.Chunk)
	}
	switch method {
	case protocol.NotificationExited:
		f.exits[p.ProcessID] = p.ExitCode
	case protocol.NotificationClosed:
		f.closed[p.ProcessID] = f.exits[p.ProcessID]
	}
	return nil
}

// waitClosed waits until closed has come.
func (f *follower) waitClosed(t *testing.T, id string) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, ok := f.closed[id]; !ok && f.err == nil {
			return fmt.Errorf("process %s is not closed after event %d", id, f.seqs[id])
		}
		return nil
	})
	f.check(t)
}

func (f *follower) check(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		t.Fatal(f.err)
	}
}

// progress is how many events have come.
func (f *follower) progress(id string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seqs[id]
}

func dial(t *testing.T, url string, o testclient.Options) *testclient.Conn {
	t.Helper()
	c, err := testclient.Dial(testContext(t), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Drop)
	return c
}

func call(t *testing.T, c *testclient.Conn, method string, params, result any) {
	t.Helper()
	if err := c.Call(testContext(t), method, params, result); err != nil {
		t.Fatalf("%s: %v", method, err)
	}
}

// startChild starts a child program of the test kit.
func startChild(t *testing.T, c *testclient.Conn, id, name string, args ...string) {
	t.Helper()
	argv, env := testkit.Child(name, args...)
	call(t, c, protocol.MethodStart, protocol.StartParams{
		ProcessID: id, Argv: argv, Env: env, Cwd: protocol.OSPath("/"), PipeStdin: true,
	}, nil)
}

// An observer that reads nothing costs the owner nothing, and learns in the end
// how much it has missed.
func TestSlowObserver(t *testing.T) {
	const size = 10 << 20
	url := serve(t, &server.Options{Session: server.SessionOptions{RetainedBytes: 256 << 10}})
	owner, slow, quick := newFollower(), newHeldFollower(), newFollower()
	c := dial(t, url, testclient.Options{Notify: owner.notify})
	dial(t, url, testclient.Options{Observe: c.SessionID, Notify: slow.notify})
	dial(t, url, testclient.Options{Observe: c.SessionID, Notify: quick.notify})
	startChild(t, c, "p", "flood", strconv.Itoa(size))
	owner.waitClosed(t, "p")
	if owner.bytes["p"] != size {
		t.Errorf("the owner got %d bytes of %d", owner.bytes["p"], size)
	}
	quick.waitClosed(t, "p")
	if got := quick.bytes["p"] + quick.dropped["p"]; got != size {
		t.Errorf("the quick observer got %d bytes, and was told of %d dropped", quick.bytes["p"], quick.dropped["p"])
	}
	slow.release()
	slow.waitClosed(t, "p")
	if got := slow.bytes["p"] + slow.dropped["p"]; got != size || slow.dropped["p"] == 0 {
		t.Errorf("the slow observer got %d bytes, and was told of %d dropped", slow.bytes["p"], slow.dropped["p"])
	}
	t.Logf("dropped: %d for the slow one, %d for the quick one", slow.dropped["p"], quick.dropped["p"])
}

// An observer that does not even let its connection drain is held up alone, too,
// however many processes there are.
func TestObserversComeAndGo(t *testing.T) {
	url := serve(t, &server.Options{Session: server.SessionOptions{RetainedBytes: 128 << 10, MaxObservers: 4}})
	owner := newFollower()
	c := dial(t, url, testclient.Options{Notify: owner.notify})
	const processes, size = 8, 2 << 20
	for i := range processes {
		startChild(t, c, strconv.Itoa(i), "flood", strconv.Itoa(size))
	}
	var wg sync.WaitGroup
	ctx := testContext(t)
	for range 4 {
		wg.Go(func() {
			for range 10 {
				f := newHeldFollower()
				o, err := observe(ctx, url, testclient.Options{Observe: c.SessionID, Notify: f.notify})
				if err != nil {
					t.Errorf("observe: %v", err)
					return
				}
				time.AfterFunc(2*time.Millisecond, f.release)
				var list struct{ Processes []any }
				if err := o.Call(ctx, protocol.MethodList, nil, &list); err != nil || len(list.Processes) != processes {
					t.Errorf("list: %v, %d processes", err, len(list.Processes))
				}
				o.Drop()
				f.check(t)
			}
		})
	}
	for i := range processes {
		owner.waitClosed(t, strconv.Itoa(i))
	}
	for id, n := range owner.bytes { // nothing writes there any more
		if n != size {
			t.Errorf("the owner got %d bytes of %d from %s", n, size, id)
		}
	}
	wg.Wait()
	// All of them are gone, so that there is room for others.
	for range 4 {
		o, err := observe(ctx, url, testclient.Options{Observe: c.SessionID})
		if err != nil {
			t.Fatal(err)
		}
		defer o.Drop()
	}
	if _, err := testclient.Dial(ctx, url, testclient.Options{Observe: c.SessionID}); !errors.Is(err, protocol.ErrInvalidRequest) {
		t.Errorf("a fifth observer: %v", err)
	}
}

// observe dials until there is room for another observer: the server may notice
// a little later that one is gone.
func observe(ctx context.Context, url string, o testclient.Options) (*testclient.Conn, error) {
	for {
		c, err := testclient.Dial(ctx, url, o)
		if !errors.Is(err, protocol.ErrInvalidRequest) || ctx.Err() != nil {
			return c, err
		}
		time.Sleep(time.Millisecond)
	}
}

// An owner that does not read any more stops its processes; an observer that
// takes over sets them free, with nothing lost that nobody had acknowledged.
func TestTakeOverFromAStuckOwner(t *testing.T) {
	const size = 3 << 20
	url := serve(t, &server.Options{Session: server.SessionOptions{RetainedBytes: 256 << 10}})
	stuck, heir := newFollower(), newFollower()
	heir.data["p"] = new(bytes.Buffer)
	c := dial(t, url, testclient.Options{Notify: stuck.notify, Asks: protocol.ClientCapabilities{ProcessAck: true}})
	o := dial(t, url, testclient.Options{Observe: c.SessionID, Notify: heir.notify})
	startChild(t, c, "p", "pattern", strconv.Itoa(size))
	// Nothing is acknowledged: the process stops when its room is used up.
	var held uint64
	testkit.WaitFor(t, testkit.Patience, func() error {
		before := held
		held = retained(t, o, "p")
		if held < 128<<10 || held != before || heir.progress("p") == 0 {
			return fmt.Errorf("%d bytes are retained", held)
		}
		return nil
	})
	call(t, o, protocol.MethodTakeOver, nil, nil)
	heir.waitClosed(t, "p")
	<-c.Done()
	if !bytes.Equal(heir.data["p"].Bytes(), testkit.Pattern(size)) || heir.dropped["p"] > 0 {
		t.Errorf("the heir got %d bytes of %d, and was told of %d dropped", heir.bytes["p"], size, heir.dropped["p"])
	}
	if len(stuck.others) != 1 || stuck.others[0] != protocol.NotificationTakenOver {
		t.Errorf("the owner before was told %v", stuck.others)
	}
}

// retained is how many bytes the server retains of a process.
func retained(t *testing.T, c *testclient.Conn, id string) uint64 {
	t.Helper()
	var list struct {
		Processes []struct {
			ProcessID     string
			RetainedBytes uint64
		}
	}
	call(t, c, protocol.MethodList, nil, &list)
	for _, p := range list.Processes {
		if p.ProcessID == id {
			return p.RetainedBytes
		}
	}
	t.Fatalf("process %s is not listed", id)
	return 0
}

// A slow observer that takes over is told what had gone before, and loses nothing
// from then on.
func TestTakeOverBySlowObserver(t *testing.T) {
	const size = 8 << 20
	url := serve(t, &server.Options{Session: server.SessionOptions{RetainedBytes: 256 << 10}})
	owner, heir := newFollower(), newHeldFollower()
	c := dial(t, url, testclient.Options{Notify: owner.notify})
	o := dial(t, url, testclient.Options{Observe: c.SessionID, Notify: heir.notify})
	startChild(t, c, "p", "flood", strconv.Itoa(size))
	testkit.WaitFor(t, testkit.Patience, func() error {
		if owner.progress("p") < 10 {
			return errors.New("no output yet")
		}
		return nil
	})
	answer, err := o.Send(testContext(t), protocol.MethodTakeOver, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	heir.release()
	if err := answer(testContext(t), nil); err != nil {
		t.Fatal(err)
	}
	heir.waitClosed(t, "p")
	if got := heir.bytes["p"] + heir.dropped["p"]; got != size {
		t.Errorf("the heir got %d bytes, and was told of %d dropped, of %d", heir.bytes["p"], heir.dropped["p"], size)
	}
}

// Of observers that take over at the same time the last one owns the session,
// and the others are told.
func TestRivalObservers(t *testing.T) {
	url := serve(t, &server.Options{})
	c := dial(t, url, testclient.Options{})
	startChild(t, c, "p", "cat")
	const rivals = 8
	var conns []*testclient.Conn
	for range rivals {
		conns = append(conns, dial(t, url, testclient.Options{Observe: c.SessionID}))
	}
	var wg sync.WaitGroup
	for _, o := range conns {
		wg.Go(func() { _ = o.Call(testContext(t), protocol.MethodTakeOver, nil, nil) })
	}
	wg.Wait()
	<-c.Done()
	owners := 0
	for _, o := range conns {
		var result protocol.WriteResult
		err := o.Call(testContext(t), protocol.MethodWrite, object{"processId": "p", "chunk": "eA=="}, &result)
		if err == nil && result.Accepted {
			owners++
		}
	}
	if owners != 1 {
		t.Errorf("%d of %d observers own the session", owners, rivals)
	}
}

type object = map[string]any

// What an observer reads by polling protects nothing from eviction.
func TestPollingObserverHoldsNothing(t *testing.T) {
	const size = 4 << 20
	url := serve(t, &server.Options{Session: server.SessionOptions{RetainedTotalBytes: 1 << 20, RetainedBytes: 128 << 10}})
	owner := newFollower()
	c := dial(t, url, testclient.Options{Notify: owner.notify})
	o := dial(t, url, testclient.Options{Observe: c.SessionID})
	startChild(t, c, "p", "flood", strconv.Itoa(size))
	begin := time.Now()
	for done := false; !done; {
		var result struct{ Closed bool }
		call(t, o, protocol.MethodRead, object{"processId": "p", "maxBytes": 1}, &result)
		done = result.Closed
	}
	owner.waitClosed(t, "p")
	if took := time.Since(begin); owner.bytes["p"] != size {
		t.Errorf("the owner got %d bytes of %d in %v", owner.bytes["p"], size, took)
	}
}
