package rpc

import "sync"

// How many requests of one connection each of its pools serves at the same time. Requests
// that need much memory have smaller pools.
const (
	poolSize      = 128
	heavyPoolSize = 16
)

// pool runs functions in order of arrival on a bounded number of goroutines, which exist
// only while there is work. The connection's admission bounds the waiting functions.
type pool struct {
	conn *Conn
	size int

	mu      sync.Mutex
	queue   []func()
	running int  // goroutines
	begins  bool // a goroutine was started and has no function yet
}

func (p *pool) submit(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, f)
	p.growLocked()
}

// growLocked starts a goroutine for the queue, if there may be another. Each goroutine
// starts the next one when it has a function itself. So requests that arrive together
// share few goroutines, and their replies are written together, but a blocked one does
// not hold up the others.
func (p *pool) growLocked() {
	if len(p.queue) == 0 || p.begins || p.running >= p.size {
		return
	}
	p.begins = true
	p.running++
	p.conn.start(func() {
		for f := p.next(true); f != nil; f = p.next(false) {
			f()
		}
	})
}

// next returns the next function for a goroutine, or nil, which ends the goroutine.
func (p *pool) next(first bool) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first {
		p.begins = false
	}
	if len(p.queue) == 0 {
		p.running--
		return nil
	}
	f := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	p.growLocked()
	return f
}
