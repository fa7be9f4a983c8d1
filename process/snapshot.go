package process

import (
	"context"
	"math"

	"execserver/protocol"
)

// Status is where a process stands.
type Status struct {
	NextSeq       uint64               // number of the next event; what comes gets it, or later ones
	RetainedBytes uint64               // of output
	Exit          *protocol.ExitRecord // nil: running
	Closed        bool
}

// Status says where the process stands.
func (l *Log) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.statusLocked()
}

func (l *Log) statusLocked() Status {
	l.sealLocked()
	s := Status{NextSeq: l.last + 1, Closed: l.closedSeq > 0}
	if l.exitSeq > 0 {
		how := l.exit
		s.Exit = &how
	}
	if len(l.chunks) > 0 {
		s.RetainedBytes = l.total - l.chunks[0].offset
	}
	for i := range l.streams {
		s.RetainedBytes += uint64(len(l.streams[i].head))
	}
	return s
}

// WaitExit waits until the process has exited, or ctx ends.
func (l *Log) WaitExit(ctx context.Context) {
	select {
	case <-l.exitCh:
	case <-ctx.Done():
	}
}

// Snapshot collects what is retained: of every stream its beginning and its end,
// together at most maxBytes, and how much is missing in the middle.
func (p *Process) Snapshot(maxBytes *uint64) *protocol.SnapshotResult {
	limit := uint64(math.MaxUint64)
	if maxBytes != nil {
		limit = *maxBytes
	}
	held, status := p.Log.hold()
	r := &protocol.SnapshotResult{Exit: status.Exit, Closed: status.Closed, NextSeq: status.NextSeq}
	for _, s := range p.streams {
		snapshot := held[s.name].snapshot(limit)
		switch s.name {
		case protocol.Stdout:
			r.Stdout = snapshot
		case protocol.Stderr:
			r.Stderr = snapshot
		case protocol.PTY:
			r.Terminal = snapshot
		}
	}
	return r
}

// SnapshotSize is about how many bytes a snapshot takes on the wire.
func (p *Process) SnapshotSize(maxBytes *uint64) int {
	n := p.Log.Status().RetainedBytes
	if maxBytes != nil {
		n = min(n, uint64(len(p.streams))*min(*maxBytes, n))
	}
	return int(n)/3*4 + 512
}

// heldStream is the retained output of one stream: pieces of its beginning and
// of its end. They are immutable, so that they can be copied without the lock.
type heldStream struct {
	head, tail [][]byte
	total      uint64
}

// hold collects the pieces of all streams.
func (l *Log) hold() (map[string]*heldStream, Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := make(map[string]*heldStream)
	for i := range l.streams {
		r := &l.streams[i]
		h := &heldStream{total: r.total}
		if len(r.head) > 0 {
			h.head = append(h.head, r.head)
		}
		held[r.name] = h
	}
	for i := range l.chunks {
		h := held[l.chunks[i].Stream]
		h.tail = append(h.tail, l.chunks[i].keepLocked())
	}
	return held, l.statusLocked()
}

// snapshot cuts the pieces to size, the middle first; nil is a stream without
// output.
func (h *heldStream) snapshot(limit uint64) *protocol.StreamSnapshot {
	if h == nil {
		return &protocol.StreamSnapshot{}
	}
	head, tail := lengthOf(h.head), lengthOf(h.tail)
	if head+tail == h.total { // nothing is missing yet
		h.head, h.tail = append(h.head, h.tail...), nil
		head, tail = h.total, 0
		if h.total > limit {
			h.tail, tail = h.head, h.total
		}
	}
	if head+tail > limit {
		head = min(head, limit/2)
		tail = min(tail, limit-head)
		head = min(lengthOf(h.head), limit-tail)
	}
	return &protocol.StreamSnapshot{
		Head:         first(h.head, head),
		Tail:         last(h.tail, tail),
		OmittedBytes: h.total - head - tail,
		TotalBytes:   h.total,
	}
}

func lengthOf(pieces [][]byte) (n uint64) {
	for _, p := range pieces {
		n += uint64(len(p))
	}
	return n
}

// first copies the first n bytes of the pieces.
func first(pieces [][]byte, n uint64) []byte {
	b := make([]byte, 0, n)
	for _, p := range pieces {
		b = append(b, p[:min(uint64(len(p)), n-uint64(len(b)))]...)
	}
	return b
}

// last copies the last n bytes of the pieces.
func last(pieces [][]byte, n uint64) []byte {
	b := make([]byte, 0, n)
	skip := lengthOf(pieces) - n
	for _, p := range pieces {
		m := min(skip, uint64(len(p)))
		skip -= m
		b = append(b, p[m:]...)
	}
	return b
}
