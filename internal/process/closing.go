package process

import (
	"slices"
	"time"

	"execserver/protocol"
)

const (
	// DefaultDrainTimeout bounds how long closed waits after the exit for streams
	// that descendants hold and write to.
	DefaultDrainTimeout = 2 * time.Second

	// quietTime is how long the streams must be quiet before a process whose leader
	// has exited closes although descendants hold them.
	quietTime = 250 * time.Millisecond
)

// closeDelay returns how long closed waits at most for streams that descendants hold; 0 means
// as long as they do.
func (o *Options) closeDelay(asked protocol.Drain) time.Duration {
	switch {
	case asked == protocol.DrainEOF, asked == "" && o.DrainTimeout < 0:
		return 0
	case o.DrainTimeout > 0:
		return o.DrainTimeout
	}
	return DefaultDrainTimeout
}

// close closes a process whose exit is numbered.
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
	p.tree.Closed()
	p.Log.Close(len(held) > 0)
	close(p.closedCh)
	for _, s := range held {
		<-s.ended
		_ = s.file.Close()
	}
	if len(held) > 0 {
		p.Log.CloseBackground()
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

// beginClosing begins the time in which the process cannot be ended any more. It first
// waits until everything that is being ended is gone, as far as it can be killed.
func (p *Process) beginClosing() {
	p.mu.Lock()
	for p.ending.begun && p.killed == nil {
		p.mu.Unlock()
		p.awaitStreams()         // their holders have the grace that they were given
		p.kill(p.tree.Collect()) // those that have let go of the streams, and still linger
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

// settle waits until the streams of a process whose leader has exited have ended. If
// nobody is ending the process, it returns as soon as they have been quiet for quietTime,
// and when the timeout is over.
func (p *Process) settle() {
	if !slices.ContainsFunc(p.streams, (*stream).open) {
		return // the usual case: only the leader held them
	}
	exited := time.Now()
	timer := time.NewTimer(min(p.opts.quietTime, p.drain))
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

// unsettled returns how much longer the streams have to be quiet.
func (p *Process) unsettled(exited time.Time) time.Duration {
	p.mu.Lock()
	ending := p.ending.begun
	p.mu.Unlock()
	if ending {
		return p.opts.quietTime // a process that is being ended leaves nothing in the background
	}
	quiet := p.opts.quietTime - p.Log.Quiet()
	for _, s := range p.streams {
		if s.open() && s.pending() {
			quiet = p.opts.quietTime // its reader is late, or waits for room
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
