package output

import (
	"context"
	"time"

	"execserver/protocol"
)

// Read returns the events after the number by the rules of process/read (PROTOCOL.md,
// "process/read"). It never waits.
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
		c.keepLocked()
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

// Ready reports whether Read has something to return after the number. Events that were
// evicted do not count.
func (l *Log) Ready(after uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.readyLocked(after)
}

func (l *Log) readyLocked(after uint64) bool {
	return l.firstAfterLocked(after) < len(l.chunks) || l.closedSeq > 0 || l.exitSeq > after
}

// Wait waits until Read has something to return, or ctx ends.
func (l *Log) Wait(ctx context.Context, after uint64) {
	l.await(ctx, func() bool { return l.readyLocked(after) })
}

// await waits until an event makes done true, or ctx ends. done is called with the
// lock held.
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

// Quiet returns how long no output has come since the leader's exit.
func (l *Log) Quiet() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.latest)
}

// Latest copies the end of the retained output of all streams, at most limit bytes.
func (l *Log) Latest(limit int) []byte {
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

// SizeAfter estimates how many bytes the result of Read has on the wire.
func (l *Log) SizeAfter(after uint64, maxBytes *uint64) int {
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
	NextSeq       uint64               // the number of the next event
	RetainedBytes uint64               // of output
	Exit          *protocol.ExitRecord // nil: running
	Closed        bool
}

// Status returns the state of the log. The last chunk does not grow any more.
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
