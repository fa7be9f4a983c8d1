package process

import (
	"context"
	"time"

	"execserver/protocol"
)

const (
	// DefaultDrainTimeout is how long after the exit closed waits for streams
	// that descendants hold and write to, unless told otherwise.
	DefaultDrainTimeout = 2 * time.Second

	// quietTime is how long the streams say nothing before a process whose
	// leader has exited closes although descendants hold them.
	quietTime = 250 * time.Millisecond
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

// quiet is how long no output has come since the leader's exit.
func (l *Log) quiet() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.latest)
}

// settle waits until the streams of a process whose leader has exited have ended.
// Unless the process drains to the end, or is being ended, it waits no longer than
// until they have been quiet for a moment, and in any case not beyond the timeout.
func (p *Process) settle() {
	exited := time.Now()
	timer := time.NewTimer(min(quietTime, p.drain))
	defer timer.Stop()
	for _, s := range p.streams {
		for open := true; open; {
			select {
			case <-s.ended:
				open = false
			case <-timer.C:
				more := p.unsettled(exited)
				if more <= 0 {
					return
				}
				timer.Reset(more)
			}
		}
	}
}

// unsettled is how much longer the streams have to be quiet.
func (p *Process) unsettled(exited time.Time) time.Duration {
	p.mu.Lock()
	ending := p.ending.begun
	p.mu.Unlock()
	if ending {
		return quietTime // what is to be ended keeps nothing for the background
	}
	quiet := quietTime - p.Log.quiet()
	for _, s := range p.streams {
		if s.open() && s.pending() {
			quiet = quietTime // its reader is late, or waits for room
		}
	}
	return min(quiet, p.drain-time.Since(exited))
}

// awaitStreams waits until the streams have ended.
func (p *Process) awaitStreams() {
	for _, s := range p.streams {
		<-s.ended
	}
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
