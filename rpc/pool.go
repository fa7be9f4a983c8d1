package rpc

import (
	"sync"
	"sync/atomic"
	"time"
)

// How many requests of one connection are served in its pools at the same time,
// and how many more because others had to wait for them too long. Those that
// take much memory each have a smaller pool of their own.
const (
	poolSize   = 128
	maxOverdue = 512

	heavyPoolSize   = 16
	heavyMaxOverdue = 128
)

// pool runs functions on a bounded number of goroutines, which exist only while
// there is work. A system call that does not return, as on a file system whose
// server is gone, must not keep others waiting for good: when somebody waits, a
// task that has run for longer than patience loses its place in the pool and
// runs on beside it. What waits is bounded by the connection's admission.
type pool struct {
	conn       *Conn
	size       int
	maxOverdue int
	patience   time.Duration

	mu      sync.Mutex
	queue   []*task
	running map[*task]struct{} // those with a place
	overdue int                // those that have lost theirs
	timer   *time.Timer        // set while somebody waits
}

// task is one function in the pool.
type task struct {
	run     func()
	patient *atomic.Bool // while it is true, nobody's fault but the peer's
	began   time.Time
	overdue bool
}

func (p *pool) submit(t *task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.running) >= p.size {
		p.queue = append(p.queue, t)
		p.watchLocked()
		return
	}
	p.startLocked(t)
}

func (p *pool) startLocked(t *task) {
	if p.running == nil {
		p.running = make(map[*task]struct{})
	}
	t.began = time.Now()
	p.running[t] = struct{}{}
	p.conn.start(func() {
		for t != nil {
			t.run()
			t = p.next(t)
		}
	})
}

// next takes the next task after one that is done; nil ends the goroutine.
func (p *pool) next(done *task) *task {
	p.mu.Lock()
	defer p.mu.Unlock()
	if done.overdue {
		p.overdue--
		p.watchLocked()
		return nil
	}
	delete(p.running, done)
	t := p.takeLocked()
	if t != nil {
		t.began = time.Now()
		p.running[t] = struct{}{}
	}
	return t
}

func (p *pool) takeLocked() *task {
	if len(p.queue) == 0 {
		return nil
	}
	t := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	return t
}

// watchLocked sees to it that somebody who waits does not wait for ever.
func (p *pool) watchLocked() {
	if p.timer != nil || len(p.queue) == 0 || p.overdue >= p.maxOverdue {
		return
	}
	oldest := time.Now()
	for t := range p.running {
		if t.began.Before(oldest) {
			oldest = t.began
		}
	}
	p.timer = time.AfterFunc(time.Until(oldest.Add(p.patience)), p.lose)
}

// lose takes the places of tasks that have run for too long and gives them to
// those that wait.
func (p *pool) lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	for t := range p.running {
		if len(p.queue) == 0 || p.overdue >= p.maxOverdue {
			break
		}
		switch {
		case time.Since(t.began) < p.patience:
		case t.patient.Load():
			t.began = time.Now()
		default:
			t.overdue = true
			p.overdue++
			delete(p.running, t)
			p.startLocked(p.takeLocked())
		}
	}
	p.watchLocked()
}
