//go:build linux

package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/protocol"
)

// driver performs random steps on one session, one after another.
type driver struct {
	t      *testing.T
	url    string
	about  string // for failures
	random *rand.Rand
	ctx    context.Context
	cancel context.CancelFunc
	counts map[string]int

	session   string
	conn      *testclient.Conn
	tap       *tap // of conn
	acks      bool // the owner acknowledges by itself
	procs     []*model
	observers []*observation
	nextWrite int

	mu   sync.Mutex
	byID map[string]*model
	err  error // what an event was wrong about
}

func newDriver(t *testing.T, url string, seed, first uint64) *driver {
	d := &driver{
		t: t, url: url, about: fmt.Sprintf("MODEL_SEED=%d, session of step %d", seed, first),
		random: rand.New(rand.NewPCG(seed, first)), counts: make(map[string]int), byID: make(map[string]*model),
	}
	d.ctx, d.cancel = context.WithTimeout(context.Background(), 5*testkit.Patience)
	return d
}

// step performs one step. It reports false if the step does not apply.
type step struct {
	name   string
	weight int
	do     func(*driver) (bool, error)
}

var steps = []step{
	{"start", 14, (*driver).start},
	{"write", 30, (*driver).write},
	{"closeStdin", 5, (*driver).closeStdin},
	{"resize", 5, (*driver).resize},
	{"signal", 6, (*driver).signal},
	{"terminate", 4, (*driver).terminate},
	{"wait", 5, (*driver).wait},
	{"read", 5, (*driver).read},
	{"snapshot", 5, (*driver).snapshot},
	{"list", 2, (*driver).list},
	{"ack", 8, (*driver).ack},
	{"cut", 4, (*driver).cut},
	{"hold", 4, (*driver).hold},
	{"observe", 4, (*driver).observe},
	{"holdObserver", 4, (*driver).holdObserver},
	{"leave", 1, (*driver).leave},
	{"takeOver", 3, (*driver).takeOver},
}

func (d *driver) run(n int) {
	defer d.cancel()
	defer d.drop()
	if err := d.attach(""); err != nil {
		d.fail("open", err)
		return
	}
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	for done := 0; done < n; {
		pick := d.random.IntN(total)
		s := steps[0]
		for _, s = range steps {
			if pick -= s.weight; pick < 0 {
				break
			}
		}
		did, err := s.do(d)
		if err == nil {
			err = d.check()
		}
		if err != nil {
			d.fail(s.name, err)
			return
		}
		if did {
			d.counts[s.name]++
			done++
		}
	}
	if err := d.finish(); err != nil {
		d.fail("finish", err)
	}
}

func (d *driver) fail(name string, err error) { d.t.Errorf("%s: %s: %v", d.about, name, err) }

// drop ends all connections.
func (d *driver) drop() {
	if d.conn != nil {
		d.tap.kill()
		d.conn.Drop()
	}
	for _, o := range d.observers {
		o.tap.kill()
		o.conn.Drop()
	}
}

// check compares all events received so far with the model.
func (d *driver) check() error {
	d.mu.Lock()
	err := d.err
	d.mu.Unlock()
	for _, m := range d.procs {
		if err == nil {
			err = m.check(false)
		}
	}
	return err
}

// attach connects as the owner of the session, which is new or resumed.
func (d *driver) attach(resume string) error {
	d.acks = d.random.IntN(2) == 0
	d.tap = newTap(d.owner(false))
	o := testclient.Options{Resume: resume, Asks: d.asks(), Notify: d.tap.notify, Dialer: dialer}
	for {
		ctx, cancel := context.WithTimeout(d.ctx, testkit.Patience)
		conn, err := testclient.Dial(ctx, d.url, o)
		cancel()
		if errors.Is(err, protocol.ErrSessionAttached) {
			time.Sleep(time.Millisecond) // the loss has not been noticed yet
			continue
		}
		if err != nil {
			return err
		}
		d.conn, d.session = conn, conn.SessionID
		return nil
	}
}

func (d *driver) asks() protocol.ClientCapabilities {
	return d.some(d.acks)
}

// some returns what a client may ask for.
func (d *driver) some(acks bool) protocol.ClientCapabilities {
	return protocol.ClientCapabilities{
		ProcessAck: acks, ProcessEvents: d.random.IntN(2) == 0,
		BinaryFrames: d.random.IntN(2) == 0, Compress: d.random.IntN(2) == 0,
	}
}

// params are the params of all events.
type params struct {
	ProcessID              string
	Seq                    uint64
	Chunk                  []byte
	ExitCode               int
	FirstSeq, DroppedBytes uint64
}

// owner returns the handler for the events of an owner's connection. An observer that takes
// the session over still receives some events as an observer. The handler ignores those,
// because the server sends them again after the previous owner's last event.
func (d *driver) owner(takesOver bool) func(method string, raw json.RawMessage) {
	joined := make(map[string]bool)
	return func(method string, raw json.RawMessage) {
		var p params
		err := json.Unmarshal(raw, &p)
		d.mu.Lock()
		m := d.byID[p.ProcessID]
		d.mu.Unlock()
		switch {
		case err != nil:
		case m == nil && p.Seq > 0:
			err = fmt.Errorf("an event of process %s, which nobody has started", p.ProcessID)
		case m == nil:
		case max(p.Seq, p.FirstSeq) > m.seq()+1 && takesOver && !joined[m.id]:
		case method == protocol.NotificationDropped && p.FirstSeq > m.seq()+1:
			err = fmt.Errorf("process %s: the owner is told that everything before %d is dropped after event %d", m.id, p.FirstSeq, m.seq())
		case p.Seq > 0:
			joined[m.id] = true
			err = m.take(method, p.Seq, p.Chunk, p.ExitCode)
		}
		d.note(err)
	}
}

func (d *driver) note(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = err
	}
}

// call makes a request of the owner.
func (d *driver) call(method string, p, result any) error {
	ctx, cancel := context.WithTimeout(d.ctx, testkit.Patience)
	defer cancel()
	return d.conn.Call(ctx, method, p, result)
}

// callOverCut makes a request that may be repeated. Sometimes it breaks the connection
// before the answer.
func (d *driver) callOverCut(method string, p, result any) error {
	if d.random.IntN(10) == 0 {
		if _, err := d.conn.Send(d.ctx, method, p); err != nil {
			return err
		}
		if err := d.reconnect(); err != nil {
			return err
		}
	}
	return d.call(method, p, result)
}

// reconnect breaks the connection, discards the unread events, and resumes the session.
func (d *driver) reconnect() error {
	d.conn.Cut()
	d.tap.kill()
	d.conn.Drop()
	time.Sleep(time.Duration(d.random.IntN(3)) * time.Millisecond)
	return d.attach(d.session)
}

// pause returns a random time for which something is held back.
func (d *driver) pause() time.Duration { return time.Duration(d.random.IntN(20)) * time.Millisecond }

// pick returns a random process that fits, or nil if there is none.
func (d *driver) pick(fits func(*model) bool) *model {
	var fitting []*model
	for _, m := range d.procs {
		if fits(m) {
			fitting = append(fitting, m)
		}
	}
	if len(fitting) == 0 {
		return nil
	}
	return fitting[d.random.IntN(len(fitting))]
}

func (d *driver) any() *model { return d.pick(func(*model) bool { return true }) }

// code returns the code of an error, or 0.
func code(err error) protocol.Code {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e.Code
	}
	return 0
}

// finish lets every process end and makes all checks.
func (d *driver) finish() error {
	for _, m := range d.procs {
		if m.hasClosed() {
			continue
		}
		if m.stopped {
			if err := d.call(protocol.MethodSignal, protocol.SignalParams{ProcessID: m.id, Signal: "SIGCONT"}, nil); err != nil {
				return err
			}
		}
		switch {
		case m.stdin:
			if err := d.call(protocol.MethodCloseStdin, protocol.CloseStdinParams{ProcessID: m.id}, nil); err != nil {
				return err
			}
			m.stdinClosed = true
		case !m.ends:
			if err := d.kill(m); err != nil {
				return err
			}
		}
	}
	for deadline := time.Now().Add(testkit.Patience); ; time.Sleep(time.Millisecond) {
		open := 0
		for _, m := range d.procs {
			if !m.hasClosed() {
				open++
			}
		}
		if err := d.check(); err != nil {
			return err
		}
		if open == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes have not closed: %s", open, d.describeOpen())
		}
		if _, err := d.ack(); err != nil {
			return err
		}
	}
	for _, m := range d.procs {
		if err := m.check(true); err != nil {
			return err
		}
	}
	for _, o := range d.observers {
		if err := o.finish(d.procs); err != nil {
			return err
		}
	}
	return nil
}

// describeOpen returns the server's state of the processes that should have closed.
func (d *driver) describeOpen() string {
	var list struct{ Processes []map[string]any }
	if err := d.call(protocol.MethodList, nil, &list); err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("owner acknowledges: %v;", d.acks)
	for i, m := range d.procs {
		if !m.hasClosed() && i < len(list.Processes) {
			text += fmt.Sprintf(" seen %d bytes up to event %d of %v, signals %v;", len(m.seen()), m.seq(), list.Processes[i], m.asked)
		}
	}
	return text
}
