package output

import (
	"bytes"
	"context"
	"math"
	"time"

	"execserver/protocol"
)

// Read returns the events after the sequence number by the rules of process/read
// (PROTOCOL.md, "process/read"). It does not block.
func (l *Log) Read(after uint64, maxBytes *uint64) *protocol.ReadResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &protocol.ReadResult{
		NextSeq:      l.last + 1,
		Closed:       l.closedSeq > 0,
		DroppedBytes: l.droppedBytes,
	}
	if l.exitSeq > 0 {
		r.Exit = new(l.exit)
	}
	var size uint64
	for i := l.firstAfterLocked(after); i < len(l.chunks); i++ {
		c := &l.chunks[i]
		n := uint64(len(c.Data))
		if maxBytes != nil && len(r.Chunks) > 0 && size+n > *maxBytes {
			break
		}
		size += n
		c.sealed = true
		c.pinLocked()
		r.Chunks = append(r.Chunks, c.Chunk)
		if maxBytes != nil && size >= *maxBytes {
			break
		}
	}
	if maxBytes != nil && len(r.Chunks) > 0 {
		r.NextSeq = r.Chunks[len(r.Chunks)-1].Seq + 1
	}
	if l.droppedBytes > 0 {
		r.FirstSeq = l.last + 1
		if len(l.chunks) > 0 {
			r.FirstSeq = l.chunks[0].Seq
		}
	}
	return r
}

// Ready reports whether Read would return an event after the sequence number. Evicted
// events do not count.
func (l *Log) Ready(after uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.readyLocked(after)
}

// Wait waits until Read would return an event, or ctx ends.
func (l *Log) Wait(ctx context.Context, after uint64) {
	l.await(ctx, func() bool { return l.readyLocked(after) })
}

// HasExited reports whether the exited event is numbered.
func (l *Log) HasExited() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.exitSeq > 0
}

// IsClosed reports whether the closed event is numbered.
func (l *Log) IsClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closedSeq > 0
}

// QuietFor returns the time since the latest output, or since the exit if that is later.
func (l *Log) QuietFor() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.latest)
}

// RecentOutput copies the end of the retained output of all streams, at most limit bytes.
func (l *Log) RecentOutput(limit int) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, size := len(l.chunks), 0
	for first > 0 && size < limit {
		first--
		size += len(l.chunks[first].Data)
	}
	b := make([]byte, 0, size)
	for _, c := range l.chunks[first:] {
		b = append(b, c.Data...)
	}
	return b[max(0, len(b)-limit):]
}

// EstimateReadSize estimates the encoded size of the result of Read.
func (l *Log) EstimateReadSize(after uint64, maxBytes *uint64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	size, output := 512, uint64(0)
	for i := l.firstAfterLocked(after); i < len(l.chunks); i++ {
		n := len(l.chunks[i].Data)
		if maxBytes != nil && output > 0 && output+uint64(n) > *maxBytes {
			break
		}
		output += uint64(n)
		size += chunkCost + n/3*4 + 4
	}
	return size
}

// Status is the state of a log.
type Status struct {
	NextSeq       uint64               // of the next event
	RetainedBytes uint64               // of output
	Exit          *protocol.ExitRecord // nil: running
	Closed        bool
}

// Status returns the state of the log. The last chunk no longer grows.
func (l *Log) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.statusLocked()
}

func (l *Log) statusLocked() Status {
	l.sealLocked()
	s := Status{NextSeq: l.last + 1, Closed: l.closedSeq > 0}
	if l.exitSeq > 0 {
		exit := l.exit
		s.Exit = &exit
	}
	if len(l.chunks) > 0 {
		s.RetainedBytes = l.total - l.chunks[0].offset
	}
	for i := range l.streams {
		s.RetainedBytes += uint64(len(l.streams[i].head))
	}
	return s
}

// ReadBackground returns the background output after the sequence number by the rules of
// process/readBackground. It does not block.
func (l *Log) ReadBackground(after uint64, maxBytes *uint64) *protocol.ReadBackgroundResult {
	background := l.Background()
	if background == nil {
		return &protocol.ReadBackgroundResult{NextSeq: 1, Closed: l.IsClosed()}
	}
	r := background.Read(after, maxBytes)
	return &protocol.ReadBackgroundResult{
		Chunks: r.Chunks, NextSeq: r.NextSeq, Closed: r.Closed,
		FirstSeq: r.FirstSeq, DroppedBytes: r.DroppedBytes,
	}
}

// WaitBackground waits until ReadBackground would return output, the background log is
// closed, or ctx ends.
func (l *Log) WaitBackground(ctx context.Context, after uint64) {
	l.await(ctx, func() bool { return l.closedSeq > 0 })
	if background := l.Background(); background != nil {
		background.Wait(ctx, after)
	}
}

// WaitExit waits until the process has exited, or ctx ends.
func (l *Log) WaitExit(ctx context.Context) {
	l.await(ctx, func() bool { return l.exitSeq > 0 })
}

// Snapshot returns the retained output: the beginning and the end of each stream, at most
// maxBytes together, and the number of bytes omitted between them.
func (l *Log) Snapshot(maxBytes *uint64) *protocol.SnapshotResult {
	limit := uint64(math.MaxUint64)
	if maxBytes != nil {
		limit = *maxBytes
	}
	streams, status := l.retainedStreams()
	r := &protocol.SnapshotResult{Exit: status.Exit, Closed: status.Closed, NextSeq: status.NextSeq}
	for name, stream := range streams {
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

// Head copies the evicted beginning of a stream, as far as it is kept.
func (l *Log) Head(stream string) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.streamLocked(stream).head)
}

// EstimateSnapshotSize estimates the encoded size of a Snapshot.
func (l *Log) EstimateSnapshotSize(maxBytes *uint64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.statusLocked().RetainedBytes
	if maxBytes != nil {
		n = min(n, uint64(len(l.streams))*min(*maxBytes, n))
	}
	return int(n)/3*4 + 512
}

// retainedStream is the retained output of one stream: slices of its beginning and of its
// end. They are immutable, so they can be copied without the lock.
type retainedStream struct {
	head, tail [][]byte
	total      uint64
}

// retainedStreams collects the slices of all streams.
func (l *Log) retainedStreams() (map[string]*retainedStream, Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	streams := make(map[string]*retainedStream)
	for i := range l.streams {
		r := &l.streams[i]
		h := &retainedStream{total: r.total}
		if len(r.head) > 0 {
			h.head = append(h.head, r.head)
		}
		streams[r.name] = h
	}
	for i := range l.chunks {
		h := streams[l.chunks[i].Stream]
		h.tail = append(h.tail, l.chunks[i].pinLocked())
	}
	return streams, l.statusLocked()
}

// snapshot cuts the slices to size, the middle first.
func (h *retainedStream) snapshot(limit uint64) *protocol.StreamSnapshot {
	head, tail := totalLen(h.head), totalLen(h.tail)
	if head+tail == h.total { // nothing is missing
		h.head, h.tail = append(h.head, h.tail...), nil
		head, tail = h.total, 0
		if h.total > limit {
			h.tail, tail = h.head, h.total
		}
	}
	if head+tail > limit {
		head = min(head, limit/2)
		tail = min(tail, limit-head)
		head = min(totalLen(h.head), limit-tail)
	}
	return &protocol.StreamSnapshot{
		Head:         copyFirst(h.head, head),
		Tail:         copyLast(h.tail, tail),
		OmittedBytes: h.total - head - tail,
		TotalBytes:   h.total,
	}
}

func totalLen(pieces [][]byte) (n uint64) {
	for _, p := range pieces {
		n += uint64(len(p))
	}
	return n
}

// copyFirst copies the first n bytes of the pieces.
func copyFirst(pieces [][]byte, n uint64) []byte {
	b := make([]byte, 0, n)
	for _, p := range pieces {
		b = append(b, p[:min(uint64(len(p)), n-uint64(len(b)))]...)
	}
	return b
}

// copyLast copies the last n bytes of the pieces.
func copyLast(pieces [][]byte, n uint64) []byte {
	b := make([]byte, 0, n)
	skip := totalLen(pieces) - n
	for _, p := range pieces {
		m := min(skip, uint64(len(p)))
		skip -= m
		b = append(b, p[m:]...)
	}
	return b
}

func (l *Log) readyLocked(after uint64) bool {
	return l.firstAfterLocked(after) < len(l.chunks) || l.closedSeq > 0 || l.exitSeq > after
}

// await waits until an event makes done true, or ctx ends. done is called with the lock
// held.
func (l *Log) await(ctx context.Context, done func() bool) {
	for {
		l.mu.Lock()
		if done() {
			l.mu.Unlock()
			return
		}
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
