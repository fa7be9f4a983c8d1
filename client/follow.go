package client

import (
	"sync"
	"time"
)

// Callbacks receive the events of a command, from which an agent makes the events of a
// tool call. Nil callbacks are skipped. The client calls Begin, Delta and End one after
// another, End once and last. While Delta does not return, the process blocks once it has
// written more than the server retains.
type Callbacks struct {
	// Begin reports that the process has started. Start calls it.
	Begin func(p *Process)
	// Delta receives output of a stream: Stdout, Stderr or PTY. It must not keep or change
	// data.
	Delta func(stream string, data []byte)
	// Interaction receives data that the server has accepted for stdin. Process.Write
	// calls it, also while another callback runs. It must not keep or change data.
	Interaction func(data []byte)
	// End reports that the process has exited, and that Delta has received all output
	// before the exit. The client does not report later output of descendants. The
	// snapshot holds all output, bounded by Cmd.SnapshotBytes. If the end of the process
	// is unknown, err is an *ExitMissingError, and s.Exit is nil.
	End func(s *Snapshot, err error)
}

// Follow registers callbacks for the command. Call it before Start or the first Collect,
// and not together with StdoutPipe or StderrPipe.
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
	timer *time.Timer // calls End after stragglerDelay
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

// end is called when no more events come: the process has closed, or has failed.
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
	s.Output, s.Omitted = f.output.contents(false)
	f.callbacks.End(s, err)
}
