package rpc

import "sync"

// poolSize is how many requests of one connection are served in its pool at the
// same time.
const poolSize = 128

// pool runs functions on a bounded number of goroutines, which exist only while
// there is work. What waits is bounded by the connection's admission.
type pool struct {
	mu      sync.Mutex
	queue   []func()
	running int
}

func (p *pool) submit(c *Conn, f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == poolSize {
		p.queue = append(p.queue, f)
		return
	}
	p.running++
	c.start(func() {
		for f != nil {
			f()
			f = p.next()
		}
	})
}

// next takes the next function; nil ends the goroutine.
func (p *pool) next() func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		p.running--
		return nil
	}
	f := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	return f
}
