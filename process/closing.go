package process

import (
	"slices"
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

// drain is the longest that closed waits for streams that descendants hold; 0 is
// for as long as they do.
func (o *Options) drain(asked protocol.Drain) time.Duration {
	switch {
	case asked == protocol.DrainEOF, asked == "" && o.DrainTimeout < 0:
		return 0
	case o.DrainTimeout > 0:
		return o.DrainTimeout
	}
	return DefaultDrainTimeout
}

// close tells the rest of the story of a process whose exit is numbered.
func (p *Process) close() {
	if p.drain == 0 {
		p.awaitStreams()
	} else {
		p.settle()
	}
	p.beginClosing()
	if p.stdin != nil {
		p.stdin.close()
	}
	held := p.closeEnded()
	var background *Log
	if len(held) > 0 {
		background = newBackgroundLog(p.opts.RetainedBytes, p.opts.Budget)
	}
	p.tree.closed()
	p.Log.closed(background)
	close(p.closedCh)
	for _, s := range held {
		<-s.ended
		_ = s.file.Close()
	}
	if background != nil {
		background.closed(nil)
		p.opts.Notify()
	}
	close(p.overCh)
}

// closeEnded closes the streams that have ended and returns the others.
func (p *Process) closeEnded() (held []*stream) {
	for _, s := range p.streams {
		if s.open() {
			held = append(held, s)
		} else {
			_ = s.file.Close()
		}
	}
	return held
}

// beginClosing is the point from which on the process cannot be ended any more.
// What somebody has begun to end is gone before, as far as it can be killed.
func (p *Process) beginClosing() {
	p.mu.Lock()
	for p.ending.begun && p.killed == nil {
		p.mu.Unlock()
		p.awaitStreams()         // whoever holds them has the time that it was given
		p.kill(p.tree.collect()) // those that have let go of the streams, and still linger
		p.mu.Lock()
	}
	p.closing = true
	for _, t := range p.timers {
		t.Stop()
	}
	killed := p.killed
	p.mu.Unlock()
	if killed != nil {
		<-killed
		p.awaitStreams() // finish ends them
	}
}

// settle waits until the streams of a process whose leader has exited have ended.
// Unless the process drains to the end, or is being ended, it waits no longer than
// until they have been quiet for a moment, and in any case not beyond the timeout.
func (p *Process) settle() {
	if !slices.ContainsFunc(p.streams, (*stream).open) {
		return // as nearly always: nobody else had them
	}
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

// quiet is how long no output has come since the leader's exit.
func (l *Log) quiet() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.latest)
}
