package share

import (
	"container/list"
	"context"
	"sync"
)

// Places are things of one kind for which principals wait. The principals that wait take
// turns, and those who wait for the same principal get places in the order in which they
// came. All methods may be called concurrently.
type Places struct {
	pool *Pool

	mu     sync.Mutex
	turns  list.List                // of *queue; the principal whose turn is next comes first
	queues map[string]*list.Element // of turns, by principal
}

// queue has those who wait for a principal. It is never empty.
type queue struct {
	principal string
	waiting   list.List // of channels, which are closed when the place is there
}

// NewPlaces returns so many Places.
func NewPlaces(limit int) *Places {
	return &Places{pool: NewPool(limit), queues: make(map[string]*list.Element)}
}

// Take waits until the principal may have one more place, and has it then. It returns the
// cause of ctx if that ends first.
func (p *Places) Take(ctx context.Context, principal string) error {
	granted := make(chan struct{})
	p.mu.Lock()
	turn := p.queueLocked(principal)
	q := turn.Value.(*queue)
	place := q.waiting.PushBack(granted)
	p.grantLocked()
	p.mu.Unlock()
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-granted: // a moment ago
		return nil
	default:
	}
	q.waiting.Remove(place)
	p.dropEmptyLocked(turn)
	return context.Cause(ctx)
}

// Check returns why the principal would wait for a place now, or nil.
func (p *Places) Check(principal string) *Error { return p.pool.Check(principal) }

// Give gives a place of a principal back.
func (p *Places) Give(principal string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pool.Give(principal)
	p.grantLocked()
}

// queueLocked returns the turn of a principal. One that has none gets the last.
func (p *Places) queueLocked(principal string) *list.Element {
	if p.queues[principal] == nil {
		p.queues[principal] = p.turns.PushBack(&queue{principal: principal})
	}
	return p.queues[principal]
}

func (p *Places) dropEmptyLocked(turn *list.Element) {
	if q := turn.Value.(*queue); q.waiting.Len() == 0 {
		p.turns.Remove(turn)
		delete(p.queues, q.principal)
	}
}

// grantLocked gives places to those who wait and may have one.
func (p *Places) grantLocked() {
	for turn := p.turns.Front(); turn != nil; {
		q := turn.Value.(*queue)
		if p.pool.Take(q.principal) != nil {
			turn = turn.Next()
			continue
		}
		close(q.waiting.Remove(q.waiting.Front()).(chan struct{}))
		p.turns.MoveToBack(turn)
		p.dropEmptyLocked(turn)
		turn = p.turns.Front()
	}
}
