package client

import (
	"io"
	"sync"
)

// queue passes the output of a process to one reader, in order and without loss. The
// process's mu guards its fields.
type queue struct {
	p     *Process
	ready sync.Cond // signals an event or the end
	items []Event
	exit  bool   // the reader also wants Exited
	busy  uint64 // number of the chunk that the reader is handling
	end   error  // set at the end of the output; io.EOF after closed
	gone  bool   // nobody reads any more
	pipe  bool   // a pipe, which the caller may not read
}

func newQueue(p *Process) *queue {
	q := &queue{p: p}
	q.ready.L = &p.mu
	return q
}

func (q *queue) pushLocked(e Event) {
	if q.pipe && q.p.flowsLocked() && q.p.queued > maxQueuedAcked {
		q.abandonLocked()
	}
	if q.gone {
		q.p.consumedLocked(len(e.Data), 0)
		return
	}
	if q.p.flowsLocked() && q.p.queued > 2*maxQueuedAcked {
		q.p.failLocked(errFlood) // it no longer waits for readers
		return
	}
	q.items = append(q.items, e)
	q.p.addQueuedLocked(len(e.Data) + eventBytes)
	if q.pipe && q.p.ending {
		q.p.consumedLocked(len(e.Data), 0)
	}
	q.ready.Signal()
}

func (q *queue) endLocked(err error) {
	if q.end == nil {
		q.end = err
		q.ready.Broadcast()
	}
}

// next returns the next event, which stays unacknowledged until done is called. At the
// end the error is io.EOF, or the failure of the process.
func (q *queue) next() (Event, error) {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	for len(q.items) == 0 && q.end == nil && !q.gone {
		q.ready.Wait()
	}
	switch {
	case q.gone:
		return Event{}, io.ErrClosedPipe
	case len(q.items) == 0:
		return Event{}, q.end
	}
	first := q.items[0]
	q.items[0] = Event{}
	q.items = q.items[1:]
	q.busy = first.Seq
	return first, nil
}

// done records that the reader has consumed the n bytes of its chunk.
func (q *queue) done(n int) {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.busy = 0
	q.p.consumedLocked(n, n+eventBytes)
}

// abandon lets the process continue without this reader.
func (q *queue) abandon() {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.abandonLocked()
}

func (q *queue) abandonLocked() {
	if q.gone {
		return
	}
	q.gone = true
	n := 0
	for _, it := range q.items {
		n += len(it.Data)
	}
	held := n + len(q.items)*eventBytes
	q.items = nil
	q.p.consumedLocked(n, held)
	q.ready.Broadcast()
}

// passOn passes every event to pass until pass returns an error, which is the result. It
// does not report a failure of the process.
func (q *queue) passOn(pass func(Event) error) error {
	for {
		e, err := q.next()
		if err != nil {
			return nil
		}
		err = pass(e)
		q.done(len(e.Data))
		if err != nil {
			q.abandon()
			return err
		}
	}
}

// copyTo returns a function that writes output to w.
func copyTo(w io.Writer) func(Event) error {
	return func(e Event) error {
		n, err := w.Write(e.Data)
		if err == nil && n < len(e.Data) {
			err = io.ErrShortWrite
		}
		return err
	}
}

// consumedSeqLocked returns the number up to which the reader has consumed all its events.
func (q *queue) consumedSeqLocked() uint64 {
	switch {
	case q.gone, q.pipe && q.p.ending:
	case q.busy > 0:
		return q.busy - 1
	case len(q.items) > 0:
		return q.items[0].Seq - 1
	}
	return q.p.last
}

// outputPipe is the result of StdoutPipe and StderrPipe. It needs no goroutine.
type outputPipe struct {
	q    *queue
	mu   sync.Mutex // one Read at a time
	rest []byte     // of the chunk being read
	size int        // of that chunk
}

// Read implements io.Reader.
func (o *outputPipe) Read(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.rest) == 0 {
		e, err := o.q.next()
		if err != nil {
			return 0, err
		}
		o.rest, o.size = e.Data, len(e.Data)
	}
	n := copy(b, o.rest)
	o.rest = o.rest[n:]
	if len(o.rest) == 0 {
		o.q.done(o.size)
	}
	return n, nil
}

// Close implements io.Closer. The process's further output is dropped.
func (o *outputPipe) Close() error {
	o.q.abandon()
	return nil
}
