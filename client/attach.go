package client

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strings"

	"execserver/protocol"
)

// Attach returns a process of the session that this program did not start: one that an
// earlier program left there (Options.Session), or that the owner of an observed session
// runs (Options.Observe). Processes lists them. Its Events and Copy begin with what the
// server still retains, and continue live; where output is no longer retained, they report
// a *GapError.
//
// Until the first reader begins, or Wait is called, an owner acknowledges nothing: the
// output stays at the server, and the process blocks when it has written more than the
// server retains. An observer never delays a process.
//
// The Process is the same for all callers until it has closed. Attaching to a process that
// this Environment started, and that has not closed, returns the Process of its Cmd. If
// there is no such process, the error is a *protocol.Error with the code InvalidRequest.
func (e *Environment) Attach(ctx context.Context, id string) (*Process, error) {
	for {
		p, first, err := e.attached(id)
		switch {
		case err != nil:
			return nil, err
		case first:
			if err := p.introduce(ctx); err != nil {
				return nil, err
			}
			return p, nil
		case !p.attached:
			return p, nil
		}
		select {
		case <-p.introduced:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if p.introduction == nil {
			return p, nil
		}
	}
}

// attached returns the process with an id, and whether it is new. A new one receives its
// events from now on.
func (e *Environment) attached(id string) (p *Process, first bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return nil, false, e.err
	}
	if p := e.procs[id]; p != nil {
		return p, false, nil
	}
	p = newProcess(e)
	p.ID, p.attached, p.started = id, true, true
	p.introduced = make(chan struct{})
	p.asked.Store(true)
	p.input.prefix = uniquePrefix()
	p.hold = &cursor{p: p, next: 1}
	p.cursors = append(p.cursors, p.hold)
	e.procs[id] = p
	return p, true, nil
}

// uniquePrefix makes ids that no other program has used in the session.
func uniquePrefix() string { return strings.ToLower(rand.Text()[:8]) + "-" }

// introduce asks the server about a process that was just attached.
func (p *Process) introduce(ctx context.Context) error {
	defer close(p.introduced)
	state, err := p.env.link.read(ctx, p.ID, farSeq, 1)
	if err == nil {
		p.tty, err = p.onTerminal(ctx)
	}
	if err != nil {
		p.introduction = err
		p.fail(err)
		return err
	}
	p.adopt(state)
	return nil
}

// onTerminal reports whether the process runs on a terminal, as far as the server says so.
func (p *Process) onTerminal(ctx context.Context) (bool, error) {
	if !p.env.has(capList) {
		return false, nil
	}
	list, err := p.env.link.list(ctx, false)
	if err != nil {
		return false, err
	}
	for _, listed := range list.Processes {
		if listed.ProcessID == p.ID {
			return listed.TTY, nil
		}
	}
	return false, nil // it was forgotten meanwhile
}

// adopt takes over the state of an attached process from an answer without output.
func (p *Process) adopt(r *protocol.ReadResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.overLocked() {
		return
	}
	if r.Failure != nil {
		p.failLocked(errors.New(*r.Failure))
		return
	}
	if r.NextSeq > 0 {
		p.last = max(p.last, r.NextSeq-1)
		p.wake = max(p.wake, p.last)
	}
	if r.Exit != nil && p.exit == nil {
		p.exitLocked(exitOf(r.Exit), 0)
	}
	p.signalLocked()
	if r.Closed {
		p.closeLocked()
	}
}

// takeLocked accepts an event of an attached process. A number that does not follow the
// last one means that the server evicted what is between, or will still send it; readers
// ask the server.
func (p *Process) takeLocked(e Event) {
	if p.overLocked() {
		return
	}
	p.wake = max(p.wake, e.Seq)
	p.signalLocked()
	if e.Kind == Exited && p.exit == nil {
		p.exitLocked(e.Exit, e.Seq)
	}
	if e.Seq > p.last {
		p.last = e.Seq
		p.replay.put(e)
	}
	switch {
	case e.Kind == Output:
		p.consumedLocked(len(e.Data), 0)
	case e.Kind == Closed && p.exit == nil:
		p.fillLocked() // which asks for the exit, too
	case e.Kind == Closed:
		p.closeLocked()
	}
}

func (p *Process) exitLocked(exit *Exit, seq uint64) {
	p.exit, p.exitSeq, p.ending = exit, seq, false
	close(p.exitedCh)
}

func (p *Process) closeLocked() {
	if p.exit == nil {
		p.failLocked(errClosedBeforeExit)
		return
	}
	p.closed = true
	p.finishLocked(io.EOF)
	p.consumedLocked(0, 0) // acknowledge it, so that the server forgets the process
}

// catchUp asks the server for the state of an attached process, and reports whether it must
// be called again.
func (p *Process) catchUp(ctx context.Context) (again bool) {
	state, err := p.env.link.read(ctx, p.ID, farSeq, 1)
	if err == nil {
		p.adopt(state)
	}
	return p.filled(err)
}

// letGo lets an attached process continue without a reader, if none has begun.
func (p *Process) letGo() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.letGoLocked()
}

func (p *Process) letGoLocked() {
	if p.hold != nil {
		p.leaveLocked(p.hold)
		p.hold = nil
	}
}
