package output

import (
	"bytes"
	"math"

	"execserver/protocol"
)

// Snapshot returns what is retained: of each stream its beginning and its end, together at
// most maxBytes, and how much is missing between them.
func (l *Log) Snapshot(maxBytes *uint64) *protocol.SnapshotResult {
	limit := uint64(math.MaxUint64)
	if maxBytes != nil {
		limit = *maxBytes
	}
	held, status := l.hold()
	r := &protocol.SnapshotResult{Exit: status.Exit, Closed: status.Closed, NextSeq: status.NextSeq}
	for name, stream := range held {
		snapshot := stream.snapshot(limit)
		switch name {
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

// Beginning copies the beginning of a stream that was evicted, as far as it is kept.
func (l *Log) Beginning(stream string) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.streamLocked(stream).head)
}

// SnapshotSize estimates how many bytes a Snapshot has on the wire.
func (l *Log) SnapshotSize(maxBytes *uint64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.statusLocked().RetainedBytes
	if maxBytes != nil {
		n = min(n, uint64(len(l.streams))*min(*maxBytes, n))
	}
	return int(n)/3*4 + 512
}

// heldStream is the retained output of one stream: pieces of its beginning and of its end.
// They are immutable, so they can be copied without the lock.
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

// snapshot cuts the pieces to size, the middle first.
func (h *heldStream) snapshot(limit uint64) *protocol.StreamSnapshot {
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
