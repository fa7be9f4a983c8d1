package process

import (
	"context"

	"execserver/protocol"
)

// newBackgroundLog makes the log of what descendants write after the process has
// closed. Nobody waits for it: when it is full, or the budget is, its oldest
// output goes.
func newBackgroundLog(limit int64, budget *Budget) *Log {
	l := newLog(limit, budget, func() {}, func() {})
	l.lossy, l.evict, l.headLimit = true, true, 0
	return l
}

// Background returns the log of what comes after closed; nil when nothing does, or
// the process has not closed.
func (l *Log) Background() *Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.background
}

// Held reports whether the process has closed while descendants hold its streams,
// which are still being read.
func (p *Process) Held() bool {
	background := p.Log.Background()
	return background != nil && !background.IsClosed()
}

// Over is closed after the process has closed and its streams have ended, in the
// background as well.
func (p *Process) Over() <-chan struct{} { return p.overCh }

// WaitBackground waits until the background output after the number has something
// to tell, or ctx ends.
func (p *Process) WaitBackground(ctx context.Context, after uint64) {
	select {
	case <-p.closedCh:
	case <-ctx.Done():
		return
	}
	if background := p.Log.Background(); background != nil {
		background.Wait(ctx, after)
	}
}

// ReadBackground collects the background output after the number by the rules of
// process/readBackground; it never waits.
func (p *Process) ReadBackground(after uint64, maxBytes *uint64) *protocol.ReadBackgroundResult {
	background := p.Log.Background()
	if background == nil {
		return &protocol.ReadBackgroundResult{NextSeq: 1, Closed: p.Log.IsClosed()}
	}
	r := background.Read(after, maxBytes)
	return &protocol.ReadBackgroundResult{
		Chunks: r.Chunks, NextSeq: r.NextSeq, Closed: r.Closed,
		FirstSeq: r.FirstSeq, DroppedBytes: r.DroppedBytes,
	}
}
