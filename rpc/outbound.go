package rpc

import (
	"runtime"
	"sync"
	"time"
)

// outbound is what waits to be written: replies and notifications that are
// already encoded, and the word that the source has something new.
type outbound struct {
	limit int64
	busy  func() bool   // requests are being served
	done  chan struct{} // closed when the writer has written all there will be
	room  *room         // of large replies

	mu       sync.Mutex
	changed  sync.Cond // signalled for the writer, on mu
	written  sync.Cond // broadcast when loose shrinks, on mu
	queue    []outgoing
	bytes    int64         // of queue and of what the writer took from it
	loose    int64         // of bytes, those that nobody reserved
	source   Source        // changed under both locks
	sourceMu sync.Mutex    // held while the source is used; taken before mu
	awake    bool          // the source may have something
	crowded  time.Time     // until then nobody is waited for; see gatherLocked
	finished bool          // nothing more is taken; the writer ends when queue is empty
	unread   bool          // the peer does not read any more
	quiet    chan struct{} // closed when everything is written; made on demand
}

// outgoing is one encoded message. Its memory belongs to the queue, and then to
// the writer.
type outgoing struct {
	text     []byte
	reserved *reservation // nil when nobody reserved room for it
}

func (o *outbound) init(limit int64, patience time.Duration, busy func() bool) {
	o.limit = limit
	o.busy = busy
	o.done = make(chan struct{})
	o.room = newRoom(limit, patience)
	o.changed.L = &o.mu
	o.written.L = &o.mu
}

// put queues one message, which it owns from then on, and says whether the
// connection still takes any. reserved is the room that it was made in, nil for
// none; the queue gives it back.
func (o *outbound) put(msg []byte, reserved *reservation) bool {
	if reserved != nil {
		o.room.made(reserved, int64(len(msg)))
	}
	m := outgoing{msg, reserved}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.finished || o.unread {
		o.room.drop(m)
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

// admit waits while a peer that sends and does not read has too many replies
// waiting. Those that were reserved do not count: they are bounded, and a peer
// may send its next large request before it reads them.
func (o *outbound) admit() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.finished && !o.unread && o.loose > o.limit {
		o.written.Wait()
	}
}

func (o *outbound) wake() {
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
	o.room.close()
	o.changed.Signal()
	o.written.Broadcast()
}

func (o *outbound) setSource(source Source) {
	o.sourceMu.Lock()
	defer o.sourceMu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.source = source
}

// take waits for work: messages to write first, and whether to ask the source
// then. ok is false at the end.
func (o *outbound) take(batch []outgoing) (messages []outgoing, awake, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.queue) == 0 && !o.awake && !o.finished {
		o.changed.Wait()
	}
	if len(o.queue) > 0 && o.busy() {
		o.gatherLocked()
	}
	messages, o.queue = o.queue, batch[:0]
	awake, o.awake = o.awake, false
	if o.finished {
		return messages, false, len(messages) > 0
	}
	return messages, awake, true
}

// A reply waits for others at most once in crowdedPause for longer than
// crowdedTime.
const (
	crowdedTime  = 2 * time.Millisecond
	crowdedPause = 5 * time.Second
)

// gatherLocked has goroutines that are about to reply do so first, so that one
// system call writes what they have to say. They can't be told from any others
// that are ready; where those compute, it takes long and is not tried again for a
// while.
func (o *outbound) gatherLocked() {
	begin := time.Now()
	if begin.Before(o.crowded) {
		return
	}
	o.mu.Unlock()
	runtime.Gosched()
	o.mu.Lock()
	if end := time.Now(); end.Sub(begin) > crowdedTime {
		o.crowded = end.Add(crowdedPause)
	}
}

// takeQueued is take for the messages that are there already.
func (o *outbound) takeQueued(batch []outgoing) (messages []outgoing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	messages, o.queue = o.queue, batch[:0]
	return messages
}

// sent gives back the room of messages that are written.
func (o *outbound) sent(messages []outgoing) {
	for _, m := range messages {
		o.room.drop(m)
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

// abandon drops every message, now and from now on: the peer does not read.
func (o *outbound) abandon() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unread = true
	o.queue = nil
	o.room.close()
	o.written.Broadcast()
	o.quietLocked()
}

// abandoned reports whether messages were dropped.
func (o *outbound) abandoned() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.unread
}

// idle returns a channel that is closed when every message is written, or
// dropped. It is for one caller.
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

// acknowledged tells the source what the peer has.
func (o *outbound) acknowledged(offset uint64) {
	o.sourceMu.Lock()
	defer o.sourceMu.Unlock()
	if o.source != nil {
		o.source.Acknowledged(offset)
	}
}

// writeLoop is the connection's one writer. Replies go before events, and after
// every batch of replies one event goes, so that neither starves the other.
func (c *Conn) writeLoop() {
	defer close(c.out.done)
	var batch []outgoing
	var frame []byte
	event := make([][]byte, 1)
	for {
		messages, awake, ok := c.out.take(batch)
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
		// What was queued in the meantime goes first: the event may be one that
		// follows a reply.
		batch = c.out.takeQueued(batch)
		event[0] = frame
		if !c.writeAll(batch) || !c.write(event) {
			return
		}
		c.sent.Add(uint64(len(frame)))
		c.eventSent()
	}
}

// nextEvent asks the source for its next event, if it has one.
func (c *Conn) nextEvent(frame []byte) (_ []byte, ok bool) {
	c.out.sourceMu.Lock()
	source := c.out.source
	if source == nil {
		c.out.sourceMu.Unlock()
		return frame, false
	}
	// Looked at first: what is wanted after the source has had nothing is about
	// events that are yet to be sent.
	wanted := c.life.wantAck.Swap(false)
	frame, ok = source.AppendEvent(frame, c.sent.Load())
	c.out.sourceMu.Unlock()
	switch {
	case !ok && wanted:
		c.askAck()
		return frame, false
	case !ok:
		return frame, false
	case wanted:
		c.life.wantAck.Store(true)
	}
	c.out.wake() // there may be more
	return frame, true
}

// How much of queued messages is written together: with the headers of their
// frames, what every transport writes with one system call.
const (
	gatherBytes    = 15 << 10
	gatherMessages = 64
)

// writeAll sends queued messages and gives their room back; it reports whether
// the stream is whole.
func (c *Conn) writeAll(messages []outgoing) bool {
	for len(messages) > 0 {
		n, size := 0, 0
		texts := c.texts[:0]
		for ; n < min(len(messages), gatherMessages) && (n == 0 || size+len(messages[n].text) <= gatherBytes); n++ {
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

// write sends messages; a failure ends the connection. Where the peer may end its
// input, the requests that it wrote before it left are served all the same, though
// nobody reads the answers: the reader has flushTimeout to come to the end.
func (c *Conn) write(messages [][]byte) bool {
	err := c.stream.Write(messages...)
	if err == nil {
		return true
	}
	c.out.abandon() // the reader must not wait for a peer that cannot be answered
	if !c.drains {
		c.Close(goingAway, err)
		return false
	}
	c.start(func() {
		timeout := time.NewTimer(flushTimeout)
		defer timeout.Stop()
		select {
		case <-timeout.C:
			if !c.inputEnded.Load() { // and drain bounds the rest
				c.Close(goingAway, err)
			}
		case <-c.ctx.Done():
		}
	})
	return false
}
