package rpc

import (
	"context"
	"sync"
	"time"

	"execserver/protocol"
)

// Source supplies events to a connection. The writer asks for the next event when it can send
// it, so events that wait are not encoded yet, and output can still be combined into larger
// chunks. Call [Conn.Wake] when there is a new event. The Outbox of a session is a Source,
// and so are the streamed bodies of HTTP responses.
type Source interface {
	// AppendEvent appends the next event to msg. ok is false if there is none. Replies
	// that precede the event are sent before it. Only the writer calls AppendEvent.
	AppendEvent(msg []byte) (result []byte, ok bool)
}

// Acknowledger is a Source that learns what the peer has received. At most maxPings
// numbers are not acknowledged at a time. Its methods must not block.
type Acknowledger interface {
	Source

	// Pinged reports that ping n follows the events so far, so Acknowledged(n) acknowledges
	// them. The numbers grow.
	Pinged(n uint64)

	// Acknowledged reports that the peer has received the events before ping n, and those
	// before every earlier one.
	Acknowledged(n uint64)
}

// SetSources sets the sources of events, which the writer asks in turns. After SetSources has
// returned, the connection no longer uses the previous ones.
func (c *Conn) SetSources(sources ...Source) {
	c.out.sourceMu.Lock()
	c.out.sources, c.out.turn = sources, 0
	c.out.sourceMu.Unlock()
	c.Wake()
}

// Wake notifies the writer that a source has a new event.
func (c *Conn) Wake() {
	o := &c.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.awake {
		o.awake = true
		o.changed.Signal()
	}
}

// Notify queues a notification.
func (c *Conn) Notify(method string, params any) error {
	msg, err := c.encode(params, func(b []byte, params any) ([]byte, error) {
		return protocol.AppendNotification(b, method, params)
	})
	if err != nil {
		return err
	}
	if !c.out.put(msg, nil) {
		return c.whyGone()
	}
	return nil
}

// Publish queues a notification of about size bytes, for which it first waits as
// [Request.Reserve] does for a reply. It fails when the connection ends.
func (c *Conn) Publish(method string, params any, size int) error {
	reserved, err := c.out.replies.reserve(int64(size))
	if err != nil {
		return err
	}
	msg, err := c.encode(params, func(b []byte, params any) ([]byte, error) {
		return protocol.AppendNotification(b, method, params)
	})
	if err != nil {
		reserved.release()
		return err
	}
	if !c.out.put(msg, reserved) {
		return c.whyGone()
	}
	return nil
}

// whyGone returns why the connection sends no more messages.
func (c *Conn) whyGone() error {
	if err := context.Cause(c.ctx); err != nil {
		return err
	}
	return ErrPeerClosed // it does not read any more
}

// writeLoop is the connection's only writer. It writes replies before events, and one
// event after every batch of replies, so that neither starves the other.
func (c *Conn) writeLoop() {
	defer close(c.out.done)
	var batch []outgoing
	var msg, compressed []byte
	event := make([][]byte, 1)
	for {
		messages, awake, ok := c.out.next(batch)
		if !ok || !c.writeAll(messages) {
			return
		}
		batch = messages
		if !awake {
			continue
		}
		if msg, ok = c.nextEvent(msg[:0]); !ok {
			continue
		}
		// First write the messages that were queued since: the event may follow one of
		// these replies.
		batch = c.out.nextQueued(batch)
		event[0] = c.compress(compressed, msg)
		if IsCompressed(event[0]) {
			compressed = event[0] // the memory for the next one
		}
		if !c.writeAll(batch) || !c.write(event) {
			return
		}
		c.eventSent(len(msg))
	}
}

// nextEvent calls the sources in turns for the next event.
func (c *Conn) nextEvent(msg []byte) (_ []byte, ok bool) {
	o := &c.out
	o.sourceMu.Lock()
	if len(o.sources) == 0 {
		o.sourceMu.Unlock()
		return msg, false
	}
	// Read this first: a later request for an acknowledgement concerns events that are
	// still to be sent.
	wanted := c.life.wantAck.Swap(false)
	for n := 0; n < len(o.sources) && !ok; n++ {
		o.turn = (o.turn + 1) % len(o.sources)
		msg, ok = o.sources[o.turn].AppendEvent(msg)
	}
	o.sourceMu.Unlock()
	switch {
	case !ok && wanted:
		c.askAck()
		return msg, false
	case !ok:
		return msg, false
	case wanted:
		c.life.wantAck.Store(true)
	}
	c.Wake() // there may be more events
	return msg, true
}

// How much of the queued messages is written together: as much, with the frame headers,
// as every transport writes with one system call.
const (
	batchBytes    = 15 << 10
	batchMessages = 64
)

// writeAll sends queued messages and releases their memory. It reports whether the stream
// is intact.
func (c *Conn) writeAll(messages []outgoing) bool {
	for len(messages) > 0 {
		n, size := 0, 0
		texts := c.texts[:0]
		for ; n < min(len(messages), batchMessages) && (n == 0 || size+len(messages[n].text) <= batchBytes); n++ {
			texts = append(texts, messages[n].text)
			size += len(messages[n].text)
		}
		c.texts = texts
		if !c.write(texts) {
			return false
		}
		c.out.sent(messages[:n])
		clear(texts)
		clear(messages[:n])
		messages = messages[n:]
	}
	return true
}

// write sends messages. A failure ends the connection. If the peer can close its sending side,
// the requests that it has sent are still served, although their answers can no longer be
// delivered; the reader has flushTimeout to reach the end of input.
func (c *Conn) write(messages [][]byte) bool {
	err := c.stream.Write(messages...)
	if err == nil {
		return true
	}
	c.out.abandon() // the reader must not wait for a peer that it cannot answer
	if !c.finishes {
		c.Close(goingAway, err)
		return false
	}
	c.start(func() {
		timeout := time.NewTimer(flushTimeout)
		defer timeout.Stop()
		select {
		case <-timeout.C:
			if !c.inputEnded.Load() { // otherwise finish bounds the rest
				c.Close(goingAway, err)
			}
		case <-c.ctx.Done():
		}
	})
	return false
}

// outbound is the queue of the writer: encoded replies and notifications, and whether a source
// has a new event.
type outbound struct {
	limit int64
	done  chan struct{} // closed when the writer has ended

	replies         *reservations // of memory for large replies
	fileReplies     *reservations // the same, for requests that use a file system
	endReservations func()

	mu       sync.Mutex
	changed  sync.Cond // signalled for the writer, on mu
	written  sync.Cond // broadcast when loose shrinks, on mu
	queue    []outgoing
	loose    int64 // bytes of queue and of what the writer has, without those with a reservation
	awake    bool  // a source may have an event
	finished bool  // put refuses messages; the writer ends when queue is empty
	unread   bool  // the peer no longer reads

	sourceMu sync.Mutex // held while a source is used
	sources  []Source
	turn     int // of sources: the one that was asked last
}

// outgoing is one encoded message. The queue owns its memory, and then the writer.
type outgoing struct {
	text     []byte
	reserved *reservation // nil without a reservation
}

// drop releases the memory of a message that is written, or never will be.
func (m outgoing) drop() {
	if m.reserved != nil {
		m.reserved.release()
	}
}

func (o *outbound) init(limit int64) {
	o.limit = limit
	o.done = make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	o.replies, o.fileReplies, o.endReservations = newReservations(ctx, limit), newReservations(ctx, limit), cancel
	o.changed.L = &o.mu
	o.written.L = &o.mu
}

// put queues one message, which it owns from then on, and reports whether the connection
// still accepts messages. reserved is the message's reservation, or nil; the queue
// releases it.
func (o *outbound) put(msg []byte, reserved *reservation) bool {
	if reserved != nil {
		reserved.shrink(int64(len(msg)))
	}
	m := outgoing{msg, reserved}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.finished || o.unread {
		m.drop()
		return false
	}
	o.queue = append(o.queue, m)
	if reserved == nil {
		o.loose += int64(len(msg))
	}
	o.changed.Signal()
	return true
}

// admit blocks while a peer that sends and does not read has too many replies waiting.
// Reserved replies do not count: they are bounded, and a peer may send its next large
// request before it reads them.
func (o *outbound) admit() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.finished && !o.unread && o.loose > o.limit {
		o.written.Wait()
	}
}

// finish lets the writer end once the queue is empty.
func (o *outbound) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finished = true
	o.endReservations()
	o.changed.Signal()
	o.written.Broadcast()
}

// next waits for work. It returns the messages to write, and whether to call the sources
// after them. ok is false at the end.
func (o *outbound) next(batch []outgoing) (messages []outgoing, awake, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) == 0 && !o.awake && !o.finished {
		o.changed.Wait()
	}
	messages, o.queue = o.queue, batch[:0]
	awake, o.awake = o.awake, false
	if o.finished {
		return messages, false, len(messages) > 0
	}
	return messages, awake, true
}

// nextQueued returns the messages that are queued already.
func (o *outbound) nextQueued(batch []outgoing) (messages []outgoing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	messages, o.queue = o.queue, batch[:0]
	return messages
}

// sent releases the memory of written messages.
func (o *outbound) sent(messages []outgoing) {
	for _, m := range messages {
		m.drop()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range messages {
		if m.reserved == nil {
			o.loose -= int64(len(m.text))
		}
	}
	o.written.Broadcast()
}

// abandon drops every message, now and later, because the peer does not read.
func (o *outbound) abandon() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unread = true
	o.queue = nil
	o.endReservations()
	o.written.Broadcast()
}

// abandoned reports whether messages were dropped.
func (o *outbound) abandoned() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unread
}

// end lets the writer end, and returns a channel that is closed when it has.
func (o *outbound) end() <-chan struct{} {
	o.finish()
	return o.done
}

// eachAcknowledger calls f with the sources that are Acknowledgers.
func (o *outbound) eachAcknowledger(f func(Acknowledger)) {
	o.sourceMu.Lock()
	defer o.sourceMu.Unlock()
	for _, source := range o.sources {
		if a, ok := source.(Acknowledger); ok {
			f(a)
		}
	}
}
