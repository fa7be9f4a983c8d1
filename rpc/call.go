package rpc

import (
	"context"
	"encoding/json"
	"sync"

	"execserver/protocol"
)

// pendingCalls are our own requests that the peer has not answered.
type pendingCalls struct {
	mu      sync.Mutex
	next    int64
	waiting map[protocol.ID]chan outcome
	began   chan struct{} // closed when a call begins; nil when nobody asked
	failed  error
}

// outcome is what became of a call.
type outcome struct {
	result json.RawMessage
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

// pending reports whether calls wait for their answers. If none does, began is
// closed when one begins.
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

// answer passes a response on and says whether anybody waits for it.
func (p *pendingCalls) answer(m protocol.Message) bool {
	if m.Kind == protocol.ErrorResponse {
		return p.settle(m.ID, outcome{err: m.Error})
	}
	return p.settle(m.ID, outcome{result: append(json.RawMessage(nil), m.Result...)})
}

// refuse ends a call whose response could not be read.
func (p *pendingCalls) refuse(id protocol.ID, err error) { p.settle(id, outcome{err: err}) }

func (p *pendingCalls) settle(id protocol.ID, o outcome) bool {
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

// Call sends a request and waits for the answer. The error is a *protocol.Error
// when the peer refused, a *transport.TooLargeError when its answer is above
// our limit, the context's cause when ctx ended first (the request is not taken
// back), or why the connection ended.
func (c *Conn) Call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	await, err := c.Begin(method, params)
	if err != nil {
		return nil, err
	}
	return await(ctx)
}

// Begin is the first half of Call: it sends the request, so that more can be
// sent behind it before there is an answer. await is the second half, and must
// be called once.
func (c *Conn) Begin(method string, params any) (await func(context.Context) (json.RawMessage, error), err error) {
	id, answer, err := c.calls.add()
	if err != nil {
		return nil, err
	}
	msg, err := protocol.AppendRequest(nil, id, method, params)
	if err == nil && !c.out.put(msg, nil) {
		err = c.whyGone()
	}
	if err != nil {
		c.calls.drop(id)
		return nil, err
	}
	return func(ctx context.Context) (json.RawMessage, error) {
		defer c.calls.drop(id)
		select {
		case o := <-answer:
			return o.result, o.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}, nil
}
