package client

import (
	"io"
	"sync"
)

// queue passes the output of a process on to one reader, without loss and in
// order. Its fields are guarded by the process's mu.
type queue struct {
	p     *Process
	ready sync.Cond // something to take, or the end
	items []Event
	exit  bool   // Exited is wanted besides output
	busy  uint64 // number of the chunk that the reader has and is not done with
	end   error  // set at the end of the output; io.EOF after closed
	gone  bool   // nobody reads any more
	pipe  bool   // somebody may read, or not
}

func newQueue(p *Process) *queue {
	q := &queue{p: p}
	q.ready.L = &p.mu
	return q
}

func (q *queue) pushLocked(e Event) {
	if q.pipe && q.p.ending && q.p.queued > maxQueuedAcked {
		q.abandonLocked()
	}
	if q.gone {
		q.p.consumedLocked(len(e.Data), 0)
		return
	}
	q.items = append(q.items, e)
	q.p.queuedLocked(len(e.Data))
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

// next returns the next event, which stays unacknowledged until done is called.
// At the end the error is io.EOF, or what the process failed with.
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

// done says that the reader is done with the n bytes of the chunk that it has.
func (q *queue) done(n int) {
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.busy = 0
	q.p.consumedLocked(n, n)
}

// abandon lets the process go on without this reader.
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
	q.items = nil
	q.p.consumedLocked(n, n)
	q.ready.Broadcast()
}

// passOn passes every event on. The error is what pass failed with, and then
// nothing more is; that the process failed is told by others.
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

// takenLocked is the number up to which the reader is done with everything that
// it was given.
func (q *queue) takenLocked() uint64 {
	switch {
	case q.gone, q.pipe && q.p.ending:
	case q.busy > 0:
		return q.busy - 1
	case len(q.items) > 0:
		return q.items[0].Seq - 1
	}
	return q.p.last
}

// outputPipe is what StdoutPipe and StderrPipe return. It needs no goroutine.
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

// Close implements io.Closer: the process's further output is dropped.
func (o *outputPipe) Close() error {
	o.q.abandon()
	return nil
}
