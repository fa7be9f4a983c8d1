package client

import (
	"sync"
	"time"
)

// Callbacks are told of the life of a command: what an agent makes the events of
// a tool call from. Nil ones are left out. Begin, Delta and End are called one
// after another, End once and last; while Delta does not return, the process
// waits. Interaction is called by whoever writes.
type Callbacks struct {
	// Begin: it was started.
	Begin func(p *Process)
	// Delta: it has written; data must not be kept or changed.
	Delta func(stream string, data []byte)
	// Interaction: something was written to its stdin.
	Interaction func(data []byte)
	// End: it has exited, and Delta has been told everything that it wrote
	// before. Output of descendants that comes later is not told. The snapshot
	// holds all output, bounded by Cmd.SnapshotBytes; err is nil, or an
	// *ExitMissingError, and then Exit is nil.
	End func(s *Snapshot, err error)
}

// Follow has callbacks told of the life of the command. It is called before
// Start, or the first Collect.
func (c *Cmd) Follow(callbacks Callbacks) {
	f := &caller{callbacks: callbacks}
	f.output.max = c.SnapshotBytes
	if f.output.max <= 0 {
		f.output.max = defaultSnapshotBytes
	}
	c.followers = append(c.followers, f)
	c.p.written = callbacks.Interaction
}

// caller is the follower that calls callbacks.
type caller struct {
	callbacks Callbacks
	p         *Process
	output    headTail

	mu    sync.Mutex // held during Delta and End
	exit  *Exit
	timer *time.Timer // tells the end after stragglerDelay
	ended bool
}

func (f *caller) begin(p *Process) {
	f.p = p
	if f.callbacks.Begin != nil {
		f.callbacks.Begin(p)
	}
}

func (f *caller) event(e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended:
	case e.Kind == Exited && f.p.env.acks:
		f.exit = e.Exit
		f.tellEndLocked()
	case e.Kind == Exited:
		f.exit = e.Exit
		f.timer = time.AfterFunc(stragglerDelay, f.tellEnd)
	default:
		_, _ = f.output.Write(e.Data) // never fails
		if f.callbacks.Delta != nil {
			f.callbacks.Delta(e.Stream, e.Data)
		}
	}
}

// end is told when nothing more comes: the process has closed, or has failed.
func (f *caller) end() {
	if f.timer != nil {
		f.timer.Stop()
	}
	f.tellEnd()
}

func (f *caller) tellEnd() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tellEndLocked()
}

func (f *caller) tellEndLocked() {
	if f.ended {
		return
	}
	f.ended = true
	var err error
	if f.exit == nil {
		_, err = f.p.outcome()
	}
	if f.callbacks.End == nil {
		return
	}
	s := &Snapshot{Exit: f.exit}
	s.Output, s.Omitted = f.output.take(false)
	f.callbacks.End(s, err)
}
