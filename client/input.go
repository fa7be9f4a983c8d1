package client

import (
	"context"
	"time"

	"execserver/protocol"
)

// maxWrite is the largest amount of data in one write request.
const maxWrite = 256 << 10

// inputLock keeps writes to one process in order. It is a channel of one slot, so that
// waiting for it can end with a context.
type inputLock struct {
	slot   chan struct{}
	next   *uint64 // writeId; guarded by the slot
	works  *bool   // the server has accepted a write; guarded by the slot
	copied *writes // of Stdin; guarded by the slot
	prefix string  // of writeIds, which another program must not have used for the process
}

func newInputLock() inputLock {
	return inputLock{slot: make(chan struct{}, 1), next: new(uint64), works: new(bool), copied: new(writes)}
}

func (l inputLock) lock(ctx context.Context) error {
	select {
	case l.slot <- struct{}{}:
		return nil
	default:
	}
	select {
	case l.slot <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l inputLock) unlock() { <-l.slot }

// Write writes data to the process's stdin, or types it on its terminal: all of it, once,
// also if the connection breaks meanwhile (PROTOCOL.md, "process/write"). It blocks while
// the process does not read. Concurrent calls of Write do not mix their data.
//
// The error is ErrStdinClosed if the process does not accept input. When ctx ends, or
// after any other error, the process may have read a part of data, and may still read what
// was sent.
func (p *Process) Write(ctx context.Context, data []byte) error {
	if p == nil {
		return errNotStarted
	}
	if err := p.input.lock(ctx); err != nil {
		return err
	}
	defer p.input.unlock()
	w := writes{p: p}
	for len(data) > 0 {
		n := min(len(data), maxWrite)
		if err := w.add(ctx, data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return w.settle(ctx)
}

// startingPause is the time between two attempts to write to a process that is still
// being started.
const startingPause = 10 * time.Millisecond

// repeatWrite makes a write until the server has accepted it.
func (p *Process) repeatWrite(ctx context.Context, params protocol.WriteParams) (protocol.WriteStatus, error) {
	for {
		status, err := p.env.link.write(ctx, params)
		if err != nil || status != protocol.WriteStarting {
			return status, err
		}
		select {
		case <-time.After(startingPause):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// CloseStdin closes the process's stdin after all earlier writes (PROTOCOL.md,
// "process/closeStdin"). It needs the capability processCloseStdin. It may be called again.
// On a terminal it fails; write the byte 4 instead.
func (p *Process) CloseStdin(ctx context.Context) error {
	if p == nil {
		return errNotStarted
	}
	if !p.env.has(capCloseStdin) {
		return &UnsupportedError{"close stdin", capCloseStdin}
	}
	if err := p.input.lock(ctx); err != nil {
		return err
	}
	defer p.input.unlock()
	return p.env.link.closeStdin(ctx, p.ID)
}
