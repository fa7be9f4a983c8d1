package rpc

import (
	"context"
	"sync"
	"time"
)

// outbound is what waits to be written: encoded replies and notifications, and whether
// the source has a new event.
type outbound struct {
	limit int64
	done  chan struct{} // closed when the writer has ended

	room, files *room  // of large replies; files of those to requests that use a file system
	closeRoom   func() // of both

	mu       sync.Mutex
	changed  sync.Cond // signalled for the writer, on mu
	written  sync.Cond // broadcast when loose shrinks, on mu
	queue    []outgoing
	bytes    int64         // of queue and of the messages that the writer has
	loose    int64         // the part of bytes without a reservation
	awake    bool          // a source may have an event
	finished bool          // put refuses messages; the writer ends when queue is empty
	unread   bool          // the peer no longer reads
	quiet    chan struct{} // closed when everything is written; created on demand

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
		m.reserved.giveBack()
	}
}

func (o *outbound) init(limit int64) {
	o.limit = limit
	o.done = make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	o.room, o.files, o.closeRoom = newRoom(ctx, limit), newRoom(ctx, limit), cancel
	o.changed.L = &o.mu
	o.written.L = &o.mu
}

// put queues one message, which it owns from then on, and reports whether the connection
// still accepts messages. reserved is the message's reservation, or nil; the queue
// releases it.
func (o *outbound) put(msg []byte, reserved *reservation) bool {
	if reserved != nil {
		reserved.made(int64(len(msg)))
	}
	m := outgoing{msg, reserved}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.finished || o.unread {
		m.drop()
		return false
	}
	o.queue = append(o.queue, m)
	o.bytes += int64(len(msg))
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

// Wake tells the writer that a source has a new event.
func (c *Conn) Wake() {
	o := &c.out
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.awake {
		o.awake = true
		o.changed.Signal()
	}
}

// finish lets the writer end once the queue is empty.
func (o *outbound) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finished = true
	o.closeRoom()
	o.changed.Signal()
	o.written.Broadcast()
}

// SetSources makes sources the suppliers of events, in turns. The connection does not use
// the previous ones after SetSources has returned.
func (c *Conn) SetSources(sources ...Source) {
	c.out.sourceMu.Lock()
	c.out.sources, c.out.turn = sources, 0
	c.out.sourceMu.Unlock()
	c.Wake()
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

// sent releases the room of written messages.
func (o *outbound) sent(messages []outgoing) {
	for _, m := range messages {
		m.drop()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range messages {
		o.bytes -= int64(len(m.text))
		if m.reserved == nil {
			o.loose -= int64(len(m.text))
		}
	}
	o.written.Broadcast()
	if o.bytes == 0 {
		o.quietLocked()
	}
}

// abandon drops every message, now and later, because the peer does not read.
func (o *outbound) abandon() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unread = true
	o.queue = nil
	o.closeRoom()
	o.written.Broadcast()
	o.quietLocked()
}

// abandoned reports whether messages were dropped.
func (o *outbound) abandoned() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unread
}

// idle returns a channel that is closed when every message is written or dropped. Only
// one caller may use it.
func (o *outbound) idle() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	quiet := make(chan struct{})
	o.quiet = quiet
	if o.bytes == 0 || o.unread {
		o.quietLocked()
	}
	return quiet
}

func (o *outbound) quietLocked() {
	if o.quiet != nil {
		close(o.quiet)
		o.quiet = nil
	}
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

// writeLoop is the connection's only writer. It writes replies before events, and one
// event after every batch of replies, so that neither starves the other.
func (c *Conn) writeLoop() {
	defer close(c.out.done)
	var batch []outgoing
	var frame, compressed []byte
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
		if frame, ok = c.nextEvent(frame[:0]); !ok {
			continue
		}
		// Write the messages queued meanwhile first: the event may follow one of these
		// replies.
		batch = c.out.nextQueued(batch)
		event[0] = c.compress(compressed, frame)
		if IsCompressed(event[0]) {
			compressed = event[0] // the memory for the next one
		}
		if !c.writeAll(batch) || !c.write(event) {
			return
		}
		c.eventSent(len(frame))
	}
}

// nextEvent calls the sources in turns for the next event.
func (c *Conn) nextEvent(frame []byte) (_ []byte, ok bool) {
	o := &c.out
	o.sourceMu.Lock()
	if len(o.sources) == 0 {
		o.sourceMu.Unlock()
		return frame, false
	}
	// Read this first: a later request for an acknowledgement concerns events that are
	// still to be sent.
	wanted := c.life.wantAck.Swap(false)
	for n := 0; n < len(o.sources) && !ok; n++ {
		o.turn = (o.turn + 1) % len(o.sources)
		frame, ok = o.sources[o.turn].AppendEvent(frame)
	}
	o.sourceMu.Unlock()
	switch {
	case !ok && wanted:
		c.askAck()
		return frame, false
	case !ok:
		return frame, false
	case wanted:
		c.life.wantAck.Store(true)
	}
	c.Wake() // there may be more events
	return frame, true
}

// How much of the queued messages is written together: as much, with the frame headers,
// as every transport writes with one system call.
const (
	batchBytes    = 15 << 10
	batchMessages = 64
)

// writeAll sends queued messages and releases their room. It reports whether the stream
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

// write sends messages. A failure ends the connection. Where the peer may end its input,
// the server still serves the requests that it sent before, though nobody reads the
// answers; the reader has flushTimeout to reach the end.
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
			if !c.inputEnded.Load() { // otherwise drain bounds the rest
				c.Close(goingAway, err)
			}
		case <-c.ctx.Done():
		}
	})
	return false
}
