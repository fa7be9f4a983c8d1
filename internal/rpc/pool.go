package rpc

import (
	"sync"
	"sync/atomic"
	"time"
)

// How many requests of one connection its pools serve at the same time, and how many more
// because they took too long while others waited. Requests that need much memory have a
// smaller pool of their own.
const (
	poolSize   = 128
	maxOverdue = 512

	heavyPoolSize   = 16
	heavyMaxOverdue = 128
)

// pool runs functions on a bounded number of goroutines, which exist only while there is
// work. A blocked system call, as on a file system whose server is gone, must not block
// others forever: while others wait, a task that has run for longer than patience loses
// its place in the pool and continues outside it. The connection's admission bounds the
// waiting tasks.
type pool struct {
	conn       *Conn
	size       int
	maxOverdue int
	patience   time.Duration

	mu      sync.Mutex
	queue   []*task
	running map[*task]struct{} // tasks with a place
	begins  bool               // a goroutine was started and has no task yet
	overdue int                // number of tasks that have lost theirs
	timer   *time.Timer        // set while tasks wait
}

// task is one function in the pool.
type task struct {
	run     func()
	patient *atomic.Bool // true while the task waits for the peer alone
	began   time.Time
	overdue bool
}

func (p *pool) submit(t *task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, t)
	p.growLocked()
}

// growLocked starts a goroutine for the queue, or sets the timer if there is no place.
// Each goroutine starts the next one when it has a task itself. So requests that arrive
// together share few goroutines, and their replies are written together, but a blocked
// one holds up no other.
func (p *pool) growLocked() {
	switch {
	case len(p.queue) == 0 || p.begins:
	case len(p.running) >= p.size:
		p.watchLocked()
	default:
		p.begins = true
		p.conn.start(func() {
			for t := p.next(nil); t != nil; t = p.next(t) {
				t.run()
			}
		})
	}
}

// next returns the next task for a goroutine that has done one, or nil, which ends the
// goroutine. A goroutine that has done none passes nil.
func (p *pool) next(done *task) *task {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case done == nil:
		p.begins = false
	case done.overdue:
		p.overdue--
		p.watchLocked()
		return nil
	default:
		delete(p.running, done)
	}
	if len(p.queue) == 0 {
		return nil
	}
	t := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	if p.running == nil {
		p.running = make(map[*task]struct{})
	}
	t.began = time.Now()
	p.running[t] = struct{}{}
	p.growLocked()
	return t
}

// watchLocked sets the timer that keeps tasks from waiting forever.
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

// lose gives the places of tasks that have run for too long to waiting tasks.
func (p *pool) lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	waiting := len(p.queue)
	for t := range p.running {
		if waiting == 0 || p.overdue >= p.maxOverdue {
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
			waiting--
		}
	}
	p.growLocked()
}
