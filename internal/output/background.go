package output

import (
	"context"

	"execserver/protocol"
)

// newBackgroundLog makes the log of what descendants write after the process has
// closed. Nobody waits for it: when it or the budget is full, its oldest output is
// evicted.
func newBackgroundLog(limit int64, budget *Budget) *Log {
	l := NewLog(limit, budget, nil)
	l.lossy, l.evict, l.headLimit = true, true, 0
	return l
}

// Background returns the log of the output after closed. It returns nil if descendants do
// not hold the streams, or the process has not closed.
func (l *Log) Background() *Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.background
}

// Held reports whether the process has closed while descendants hold its streams,
// which are still being read.
func (l *Log) Held() bool {
	background := l.Background()
	return background != nil && !background.IsClosed()
}

// CloseBackground records that descendants hold no stream any more.
func (l *Log) CloseBackground() {
	l.Background().Close(false)
	l.listener.Changed()
}

// WaitBackground waits until there is output after the number, or it has ended, or ctx
// ends.
func (l *Log) WaitBackground(ctx context.Context, after uint64) {
	l.await(ctx, func() bool { return l.closedSeq > 0 })
	if background := l.Background(); background != nil {
		background.Wait(ctx, after)
	}
}

// ReadBackground collects the background output after the number by the rules of
// process/readBackground; it never waits.
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
