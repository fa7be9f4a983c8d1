package rpc

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// maxSmallReply is the size of the largest reservation in the lane of small ones.
const maxSmallReply = 64 << 10

// room bounds the memory of a connection's large replies: of those being made, and of
// those that wait for the peer to read. Reservations are granted in order of arrival, in
// two lanes: a large reservation that waits does not hold up small ones.
//
// The holder of a reservation must not wait for another: reserve for both, or release the
// first. Nothing is granted once the context has ended.
type room struct {
	ctx          context.Context
	limit        int64 // of each lane
	small, large *semaphore.Weighted
}

// reservation is memory for one reply.
type reservation struct {
	lane *semaphore.Weighted
	size int64 // what it holds of the lane
}

func newRoom(ctx context.Context, limit int64) *room {
	return &room{ctx: ctx, limit: limit, small: semaphore.NewWeighted(limit), large: semaphore.NewWeighted(limit)}
}

// part returns the lane of a reservation of n bytes, and what it holds there: all of it
// for a reply that is larger than the limit.
func (m *room) part(n int64) (*semaphore.Weighted, int64) {
	if n <= maxSmallReply {
		return m.small, min(n, m.limit)
	}
	return m.large, min(n, m.limit)
}

// reserve waits for n bytes.
func (m *room) reserve(n int64) (*reservation, error) {
	lane, size := m.part(n)
	if m.ctx.Err() != nil || lane.Acquire(m.ctx, size) != nil {
		return nil, ErrPeerClosed
	}
	return &reservation{lane, size}, nil
}

// grow changes a reservation to n bytes if that needs no waiting, and reports whether it
// did.
func (m *room) grow(r *reservation, n int64) bool {
	lane, size := m.part(n)
	more := size
	if lane == r.lane {
		more -= r.size
	}
	switch {
	case m.ctx.Err() != nil || more > 0 && !lane.TryAcquire(more):
		return false
	case lane != r.lane:
		r.giveBack()
	case more < 0:
		lane.Release(-more)
	}
	*r = reservation{lane, size}
	return true
}

// made records that the reply is n bytes long. The memory that it does not need is free
// for others.
func (r *reservation) made(n int64) {
	if n < r.size {
		r.lane.Release(r.size - n)
		r.size = n
	}
}

// giveBack releases the reservation.
func (r *reservation) giveBack() { r.lane.Release(r.size) }
