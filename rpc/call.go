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
	waiting map[protocol.ID]chan protocol.Message
	failed  error
}

func (p *pendingCalls) init() { p.waiting = make(map[protocol.ID]chan protocol.Message) }

func (p *pendingCalls) add() (protocol.ID, chan protocol.Message, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed != nil {
		return protocol.ID{}, nil, p.failed
	}
	p.next++
	id, answer := protocol.NumberID(p.next), make(chan protocol.Message, 1)
	p.waiting[id] = answer
	return id, answer, nil
}

func (p *pendingCalls) drop(id protocol.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, id)
}

// answer passes a response on and says whether anybody waits for it.
func (p *pendingCalls) answer(m protocol.Message) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer, ok := p.waiting[m.ID]
	if ok {
		delete(p.waiting, m.ID)
		m.Result = append(json.RawMessage(nil), m.Result...)
		answer <- m
	}
	return ok
}

func (p *pendingCalls) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = err
	for id, answer := range p.waiting {
		delete(p.waiting, id)
		close(answer)
	}
}

// Call sends a request and waits for the answer. The error is a *protocol.Error
// when the peer refused, the context's cause when ctx ended first (the request
// is not taken back), or why the connection ended.
func (c *Conn) Call(ctx context.Context, method string, params any) (json.RawMessage, error) {
	id, answer, err := c.calls.add()
	if err != nil {
		return nil, err
	}
	defer c.calls.drop(id)
	msg, err := protocol.AppendRequest(nil, id, method, params)
	if err != nil {
		return nil, err
	}
	if !c.out.put(msg) {
		return nil, context.Cause(c.ctx)
	}
	select {
	case m, ok := <-answer:
		switch {
		case !ok:
			return nil, context.Cause(c.ctx)
		case m.Kind == protocol.ErrorResponse:
			return nil, m.Error
		}
		return m.Result, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
