//go:build linux

package model

import (
	"encoding/json"
	"sync"
)

// tap passes on the events of one connection.
type tap struct {
	mu     sync.Mutex
	turned sync.Cond
	held   bool
	dead   bool
	handle func(method string, params json.RawMessage)
}

func newTap(handle func(string, json.RawMessage)) *tap {
	t := &tap{handle: handle}
	t.turned.L = &t.mu
	return t
}

// notify passes an event on once the tap is open.
func (t *tap) notify(method string, params json.RawMessage) {
	t.mu.Lock()
	for t.held && !t.dead {
		t.turned.Wait()
	}
	dead, handle := t.dead, t.handle
	t.mu.Unlock()
	if !dead {
		handle(method, params)
	}
}

// hold keeps events back, like a busy client.
func (t *tap) hold(held bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = held
	t.turned.Broadcast()
}

// kill discards the events that have not been passed on.
func (t *tap) kill() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dead = true
	t.turned.Broadcast()
}

// redirect passes later events on to another handler.
func (t *tap) redirect(handle func(string, json.RawMessage)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handle = handle
}
