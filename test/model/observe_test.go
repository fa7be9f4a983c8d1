//go:build linux

package model

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/protocol"
)

// observation holds the events that one observer has received.
type observation struct {
	conn  *testclient.Conn
	tap   *tap
	since int // of the processes, those from here on are seen from their beginning
	acks  bool

	mu     sync.Mutex
	copies map[string]*observed
	err    error
}

// observed holds the events of one process that an observer has received.
type observed struct {
	last   uint64
	at     uint64 // bytes of output so far, those that were dropped included
	pieces []piece
	closed bool
}

type piece struct {
	at   uint64
	data string
}

const maxObservers = 4

func (d *driver) observe() (bool, error) {
	if len(d.observers) == maxObservers {
		return false, nil
	}
	o := &observation{since: len(d.procs), acks: d.random.IntN(2) == 0, copies: make(map[string]*observed)}
	o.tap = newTap(o.notify)
	ctx, cancel := context.WithTimeout(d.ctx, testkit.Patience)
	defer cancel()
	conn, err := testclient.Dial(ctx, d.url, testclient.Options{
		Observe: d.session, Notify: o.tap.notify, Dialer: dialer,
		Asks: d.some(o.acks),
	})
	if err != nil {
		return false, err
	}
	o.conn = conn
	d.observers = append(d.observers, o)
	// It can look, and do nothing.
	if err := conn.Call(ctx, protocol.MethodTerminate, protocol.TerminateParams{ProcessID: "p0"}, nil); code(err) != protocol.CodeInvalidRequest {
		return false, fmt.Errorf("an observer terminates a process: %v", err)
	}
	return true, nil
}

func (d *driver) leave() (bool, error) {
	if len(d.observers) == 0 {
		return false, nil
	}
	i := d.random.IntN(len(d.observers))
	o := d.observers[i]
	d.observers = append(d.observers[:i:i], d.observers[i+1:]...)
	o.conn.Cut()
	o.tap.kill()
	o.conn.Drop()
	return true, o.check(d.procs)
}

// holdObserver keeps an observer from reading for a while.
func (d *driver) holdObserver() (bool, error) {
	if len(d.observers) == 0 {
		return false, nil
	}
	o := d.observers[d.random.IntN(len(d.observers))]
	o.tap.hold(true)
	time.AfterFunc(10*d.pause(), func() { o.tap.hold(false) })
	return true, nil
}

// takeOver makes an observer the owner of the session.
func (d *driver) takeOver() (bool, error) {
	if len(d.observers) == 0 {
		return false, nil
	}
	i := d.random.IntN(len(d.observers))
	heir := d.observers[i]
	d.observers = append(d.observers[:i:i], d.observers[i+1:]...)
	former, formerTap := d.conn, d.tap
	if d.random.IntN(2) == 0 { // the owner is behind
		formerTap.hold(true)
		time.Sleep(d.pause())
	}
	d.conn, d.tap, d.acks = heir.conn, heir.tap, heir.acks
	heir.tap.redirect(d.owner(true))
	heir.tap.hold(false)
	if err := d.call(protocol.MethodTakeOver, nil, nil); err != nil {
		return false, err
	}
	if d.random.IntN(2) == 0 {
		formerTap.kill() // what it has not taken is lost
	} else {
		formerTap.hold(false)
	}
	select {
	case <-former.Done():
	case <-time.After(testkit.Patience):
		return false, fmt.Errorf("the owner before has not been told to go")
	}
	former.Drop()
	return true, heir.check(d.procs)
}

// notify handles the events of an observer.
func (o *observation) notify(method string, raw json.RawMessage) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var p params
	err := json.Unmarshal(raw, &p)
	if err == nil {
		err = o.take(method, p)
	}
	if o.err == nil {
		o.err = err
	}
}

func (o *observation) take(method string, p params) error {
	c := o.copies[p.ProcessID]
	if c == nil {
		c = &observed{}
		o.copies[p.ProcessID] = c
	}
	if method == protocol.NotificationDropped {
		if p.FirstSeq <= c.last+1 {
			return fmt.Errorf("process %s: an observer is told that everything before %d is dropped after event %d", p.ProcessID, p.FirstSeq, c.last)
		}
		c.last = p.FirstSeq - 1
		c.at += p.DroppedBytes
		return nil
	}
	switch {
	case p.Seq == 0:
		return nil
	case c.closed:
		return fmt.Errorf("process %s: an observer gets event %d after closed", p.ProcessID, p.Seq)
	case c.last != 0 && p.Seq != c.last+1:
		return fmt.Errorf("process %s: an observer gets event %d after event %d", p.ProcessID, p.Seq, c.last)
	}
	c.last = p.Seq
	c.closed = method == protocol.NotificationClosed
	if len(p.Chunk) > 0 {
		c.pieces = append(c.pieces, piece{c.at, string(p.Chunk)})
		c.at += uint64(len(p.Chunk))
	}
	return nil
}

// check compares the events of an observer with those of the owner, for the processes that
// started while the observer was connected.
func (o *observation) check(procs []*model) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return o.err
	}
	for _, m := range procs[o.since:] {
		c := o.copies[m.id]
		if c == nil {
			continue
		}
		seen := m.seen()
		for _, p := range c.pieces {
			if p.at >= uint64(len(seen)) {
				break // the owner does not have it yet
			}
			end := min(p.at+uint64(len(p.data)), uint64(len(seen)))
			if seen[p.at:end] != p.data[:end-p.at] {
				return fmt.Errorf("process %s: an observer sees something else at byte %d", m.id, p.at)
			}
		}
	}
	return nil
}

// finish waits until an observer has received the end of every process.
func (o *observation) finish(procs []*model) error {
	for deadline := time.Now().Add(testkit.Patience); ; time.Sleep(time.Millisecond) {
		missing := ""
		o.mu.Lock()
		for _, m := range procs[o.since:] {
			if c := o.copies[m.id]; c == nil || !c.closed {
				missing = m.id
			}
		}
		o.mu.Unlock()
		if missing == "" {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("an observer has not seen the end of process %s", missing)
		}
	}
	for _, m := range procs[o.since:] {
		if got, want := o.copies[m.id].at, len(m.seen()); got != uint64(want) {
			return fmt.Errorf("process %s: an observer was told of %d bytes, the owner has %d", m.id, got, want)
		}
	}
	return o.check(procs)
}
