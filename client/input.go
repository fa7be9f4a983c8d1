package client

import (
	"context"
	"strconv"
	"time"

	"execserver/protocol"
)

// maxWrite is the most that goes into one write request.
const maxWrite = 256 << 10

// inputLock keeps writes to one process in order. It is a channel of one slot,
// so that waiting for it ends with a context.
type inputLock struct {
	slot chan struct{}
	next *uint64 // writeId; guarded by the slot
}

func newInputLock() inputLock { return inputLock{make(chan struct{}, 1), new(uint64)} }

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

// Write writes to the process's stdin, or types on its terminal: all of data, in
// order with other writes, once, also when the connection breaks meanwhile
// (PROTOCOL.md, "process/write"). It waits while the process does not read;
// what was sent when ctx ends may still be read. The error is ErrStdinClosed
// when the process does not take input.
func (p *Process) Write(ctx context.Context, data []byte) error {
	if p == nil {
		return errNotStarted
	}
	if err := p.input.lock(ctx); err != nil {
		return err
	}
	defer p.input.unlock()
	for len(data) > 0 {
		n := min(len(data), maxWrite)
		if err := p.writeChunk(ctx, data[:n]); err != nil {
			return err
		}
		if p.written != nil {
			p.written(data[:n])
		}
		if last := data[n-1]; last != endOfInput[0] {
			p.unfinished.Store(last != '\n' && last != '\r')
		}
		data = data[n:]
	}
	return nil
}

// startingPause is between two tries to write to a process that the server says
// is starting, which it is not for long.
const startingPause = 10 * time.Millisecond

func (p *Process) writeChunk(ctx context.Context, data []byte) error {
	*p.input.next++
	id := strconv.FormatUint(*p.input.next, 10)
	for {
		status, err := p.env.back.write(ctx, p.ID, data, id)
		switch {
		case err != nil:
			return err
		case status == protocol.WriteAccepted:
			return nil
		case status != protocol.WriteStarting:
			return ErrStdinClosed
		}
		select {
		case <-time.After(startingPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// CloseStdin closes the process's stdin after what was written before, where
// the capability processCloseStdin is announced. It may be called again. On a
// terminal, write the byte 4 instead.
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
	return p.env.back.closeStdin(ctx, p.ID)
}
