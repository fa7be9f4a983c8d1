package rpc

import (
	"context"
	"encoding/json"
	"sync"

	"execserver/protocol"
)

// pendingCalls are this side's requests that the peer has not answered.
type pendingCalls struct {
	mu      sync.Mutex
	next    int64
	waiting map[protocol.ID]chan outcome
	began   chan struct{} // closed when a call begins; created on demand
	failed  error
}

// outcome is the result of a call.
type outcome struct {
	result json.RawMessage
	data   []byte // of a binary message
	err    error
}

func (p *pendingCalls) init() { p.waiting = make(map[protocol.ID]chan outcome) }

func (p *pendingCalls) add() (protocol.ID, chan outcome, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed != nil {
		return protocol.ID{}, nil, p.failed
	}
	p.next++
	id, answer := protocol.NumberID(p.next), make(chan outcome, 1)
	p.waiting[id] = answer
	if p.began != nil {
		close(p.began)
		p.began = nil
	}
	return id, answer, nil
}

// pending reports whether calls wait for their answers. If none does, began is closed
// when one begins.
func (p *pendingCalls) pending() (calling bool, began <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) > 0 {
		return true, nil
	}
	if p.began == nil {
		p.began = make(chan struct{})
	}
	return false, p.began
}

func (p *pendingCalls) drop(id protocol.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, id)
}

// answer delivers a response and reports whether a call waited for it.
func (p *pendingCalls) answer(m protocol.Message) bool {
	if m.Kind == protocol.ErrorResponse {
		return p.complete(m.ID, outcome{err: m.Error})
	}
	return p.complete(m.ID, outcome{result: append(json.RawMessage(nil), m.Result...), data: m.Data})
}

// refuse ends a call whose response could not be read.
func (p *pendingCalls) refuse(id protocol.ID, err error) { p.complete(id, outcome{err: err}) }

func (p *pendingCalls) complete(id protocol.ID, o outcome) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer, ok := p.waiting[id]
	if ok {
		delete(p.waiting, id)
		answer <- o
	}
	return ok
}

func (p *pendingCalls) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = err
	for id, answer := range p.waiting {
		delete(p.waiting, id)
		answer <- outcome{err: err}
	}
}

// Call sends a request and waits for the answer. The error is a *protocol.Error if the
// peer refused, a *transport.TooLargeError if its answer is above the limit, the
// context's cause if ctx ended first (the request still stands), or the reason why the
// connection ended.
func (c *Conn) Call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	result, _, err := c.CallBulk(ctx, method, params)
	return result, err
}

// CallBulk is like Call, for an answer that may be binary: it also returns its data, which
// is nil in a JSON message.
func (c *Conn) CallBulk(ctx context.Context, method string, params any) (json.RawMessage, []byte, error) {
	id, answer, err := c.send(method, params)
	if err != nil {
		return nil, nil, err
	}
	return c.await(ctx, id, answer)
}

// Begin is the first half of Call: it sends the request, so that the caller can send more
// before the answer. await is the second half; the caller must call it once.
func (c *Conn) Begin(method string, params any) (await func(context.Context) (json.RawMessage, error), err error) {
	id, answer, err := c.send(method, params)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (json.RawMessage, error) {
		result, _, err := c.await(ctx, id, answer)
		return result, err
	}, nil
}

// send sends a request, and returns the arguments of await.
func (c *Conn) send(method string, params any) (protocol.ID, <-chan outcome, error) {
	id, answer, err := c.calls.add()
	if err != nil {
		return id, nil, err
	}
	msg, err := c.encode(params, func(b []byte, params any) ([]byte, error) {
		return protocol.AppendRequest(b, id, method, params)
	})
	if err == nil && !c.out.put(msg, nil) {
		err = c.whyGone()
	}
	if err != nil {
		c.calls.drop(id)
	}
	return id, answer, err
}

// await waits for the answer to a request.
func (c *Conn) await(ctx context.Context, id protocol.ID, answer <-chan outcome) (json.RawMessage, []byte, error) {
	defer c.calls.drop(id)
	select {
	case o := <-answer:
		return o.result, o.data, o.err
	case <-ctx.Done():
	}
	select {
	case o := <-answer: // the peer has served the request, even if ctx has ended since
		return o.result, o.data, o.err
	default:
		return nil, nil, context.Cause(ctx)
	}
}
