package client

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"execserver/internal/rpc"
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

// Write writes all of data to the process's stdin, or types it on its terminal, exactly once, even
// if the connection breaks. It blocks while the process does not read. Data of concurrent calls does
// not mix.
//
// The error is ErrStdinClosed if the process does not accept input. After any other error, the
// process may have read a part of data, and may still read the part already sent.
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
	return w.await(ctx)
}

// startingPause is the time between two attempts to write to a process that is still
// being started.
const startingPause = 10 * time.Millisecond

// repeatWrite makes a write until the server has accepted it.
func (p *Process) repeatWrite(ctx context.Context, params protocol.WriteParams) (protocol.WriteStatus, error) {
	for {
		status, err := p.env.remote.write(ctx, params)
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

// CloseStdin closes the process's stdin after all earlier writes. It may be called again. On a
// terminal it fails; write the byte 4 (Ctrl-D) instead. The server needs the capability
// processCloseStdin.
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
	return p.env.remote.closeStdin(ctx, p.ID)
}

// How much input may be under way to a process without an answer, so that no block waits
// for the answer to the one before.
const (
	maxUnderWay      = 32
	maxUnderWayBytes = 2 << 20
)

// writes are the writes to one process that are under way, in order. The holder of the
// process's input lock uses them.
//
// All of them went over one connection. If it breaks, they are repeated one by one before
// anything else is sent: the server recognizes by the writeId what it has accepted.
type writes struct {
	p     *Process
	conn  *rpc.Conn
	queue []underWay
	bytes int   // of queue
	err   error // the first one; nothing is sent after it

	recycles bool     // the memory of writes is from buffer
	free     [][]byte // memory for buffer
}

// underWay is one write without an answer.
type underWay struct {
	params protocol.WriteParams
	await  func(context.Context) (json.RawMessage, error)
	err    error // of sending it
}

// readBytes is the most that is read from Stdin at a time.
const readBytes = 64 << 10

// buffer returns memory for a write.
func (w *writes) buffer() []byte {
	n := len(w.free)
	if n == 0 {
		return make([]byte, readBytes)
	}
	b := w.free[n-1]
	w.free = w.free[:n-1]
	return b
}

// add sends a write, and waits only for earlier ones. data must not change until await
// has returned.
func (w *writes) add(ctx context.Context, data []byte) error {
	conns := w.p.env.conns
	if w.err == nil {
		w.err = conns.permit(protocol.MethodWrite)
	}
	if w.err != nil {
		return w.err
	}
	input := w.p.input
	*input.next++
	id := input.prefix + strconv.FormatUint(*input.next, 10)
	one := underWay{params: protocol.WriteParams{ProcessID: w.p.ID, WriteID: &id, Chunk: data}}
	conn, _, err := conns.current(ctx)
	if err == nil && conn != w.conn {
		err = w.await(ctx)
		w.conn = conn
	}
	if err != nil {
		return w.fail(err)
	}
	one.await, one.err = conn.Begin(protocol.MethodWrite, one.params)
	w.queue = append(w.queue, one)
	w.bytes += len(data)
	for len(w.queue) > 0 && (!w.several() || len(w.queue) >= maxUnderWay || w.bytes >= maxUnderWayBytes) {
		if err := w.awaitFirst(ctx); err != nil {
			return err
		}
	}
	return nil
}

// several reports whether several writes may be under way: the server must serve them in
// their order, and a process that is still being started accepts none. Nobody types that
// fast.
func (w *writes) several() bool {
	return *w.p.input.works && !w.p.tty && w.p.env.has(capBinary)
}

// await waits until the server has accepted all writes.
func (w *writes) await(ctx context.Context) error {
	for len(w.queue) > 0 && w.err == nil {
		_ = w.awaitFirst(ctx) // sets err
	}
	return w.err
}

// resend repeats the copied writes that a broken connection may have lost. The next write would
// do that, but Stdin may bring none for long.
func (p *Process) resend() {
	p.env.run(func() {
		ctx := p.env.ctx
		if p.input.lock(ctx) == nil {
			defer p.input.unlock()
			_ = p.input.copied.await(ctx) // the next add returns the error
		}
	})
}

// awaitFirst waits until the server has accepted the first write.
func (w *writes) awaitFirst(ctx context.Context) error {
	first := w.queue[0]
	w.queue[0] = underWay{}
	w.queue = w.queue[1:]
	data := first.params.Chunk
	w.bytes -= len(data)
	status, err := w.outcome(ctx, first)
	if errors.As(err, new(*brokenError)) || err == nil && status == protocol.WriteStarting {
		status, err = w.p.repeatWrite(ctx, first.params)
	}
	if err == nil && status != protocol.WriteAccepted {
		err = ErrStdinClosed
	}
	if err != nil {
		return w.fail(err)
	}
	*w.p.input.works = true
	if w.p.written != nil {
		w.p.written(data)
	}
	if last := data[len(data)-1]; last != endOfInput[0] {
		w.p.unfinished.Store(last != '\n' && last != '\r')
	}
	if w.recycles {
		w.free = append(w.free, data[:cap(data)])
	}
	return nil
}

// outcome waits for the answer to a write.
func (w *writes) outcome(ctx context.Context, one underWay) (protocol.WriteStatus, error) {
	var raw json.RawMessage
	err := one.err
	if err == nil {
		raw, err = one.await(ctx)
	}
	if err = w.p.env.conns.outcome(ctx, w.conn, protocol.MethodWrite, err); err != nil {
		return "", err
	}
	var result protocol.WriteResult
	err = understand(protocol.MethodWrite, raw, &result)
	return result.Status, err
}

// fail records why nothing more is sent. It forgets the writes under way, which the process
// may still read.
func (w *writes) fail(err error) error {
	if w.err != nil {
		return w.err
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for _, one := range w.queue {
		if one.err == nil {
			_, _ = one.await(over)
		}
	}
	w.queue, w.bytes, w.err = nil, 0, err
	return err
}
