package rpc

import (
	"sync"
	"time"
)

// room bounds the memory of a connection's large replies: of those being made, and of
// those that wait for the peer to read. Reservations are granted in order of arrival, and
// none overtakes.
//
// A reservation counts for at most three quarters of the limit. So one reply larger than
// the limit can be made at a time, beside small ones. The holder of a reservation must
// not wait for another: reserve for both, or release the first.
//
// A blocked system call, as on a file system whose server is gone, must not block others
// forever: while others wait, a reservation whose reply has taken longer than patience no
// longer counts, up to maxOverdueBytes.
type room struct {
	limit    int64
	patience time.Duration

	mu      sync.Mutex
	used    int64                     // part of the limit that granted reservations use
	waiting []*reservation            // in order of arrival
	making  map[*reservation]struct{} // granted and counted, without a reply yet
	overdue map[*reservation]struct{} // granted, and no longer counted
	late    int64                     // bytes of overdue
	timer   *time.Timer               // set while others wait for making
	closed  bool
}

// maxOverdueBytes bounds the reservations that no longer count. One may always be
// overdue.
const maxOverdueBytes = 256 << 20

// minPatience is the shortest patience.
const minPatience = 10 * time.Millisecond

// reservation is memory for one reply. The room's lock guards its fields.
type reservation struct {
	size    int64 // bytes
	granted time.Time
	ready   chan struct{} // closed when it is granted, or never will be
}

func newRoom(limit int64, patience time.Duration) *room {
	return &room{
		limit: limit, patience: patience,
		making: make(map[*reservation]struct{}), overdue: make(map[*reservation]struct{}),
	}
}

// share returns the part of the limit that a reservation of n bytes uses.
func (m *room) share(n int64) int64 { return min(n, m.limit-m.limit/4) }

// reserve waits for n bytes.
func (m *room) reserve(n int64) (*reservation, error) {
	r := &reservation{size: n, ready: make(chan struct{})}
	m.mu.Lock()
	m.waiting = append(m.waiting, r)
	m.advanceLocked()
	m.mu.Unlock()
	<-r.ready
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.granted.IsZero() {
		return nil, ErrPeerClosed
	}
	return r, nil
}

// advanceLocked grants what fits, in order.
func (m *room) advanceLocked() {
	for len(m.waiting) > 0 {
		r := m.waiting[0]
		switch {
		case m.closed:
		case m.used+m.share(r.size) > m.limit && m.used > 0:
			m.watchLocked()
			return
		default:
			m.used += m.share(r.size)
			m.making[r] = struct{}{}
			r.granted = time.Now()
		}
		close(r.ready)
		m.waiting[0] = nil
		m.waiting = m.waiting[1:]
	}
}

// grow changes a reservation to n bytes if that needs no waiting, and reports whether it
// did.
func (m *room) grow(r *reservation, n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	more := m.share(n) - m.share(r.size)
	_, counts := m.making[r]
	if m.closed || !counts || more > 0 && (len(m.waiting) > 0 || m.used+more > m.limit) {
		return false
	}
	m.used += more
	r.size = n
	return true
}

// made says that the reply of a reservation is ready and n bytes long. From now on it
// waits for the peer.
func (m *room) made(r *reservation, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetLocked(r)
	r.size = n
	m.used += m.share(n)
	m.advanceLocked()
}

// drop releases the room of a message that is written, or never will be.
func (m *room) drop(msg outgoing) {
	if msg.reserved == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= m.share(msg.reserved.size)
	m.advanceLocked()
}

// giveBack releases a reservation without a reply.
func (m *room) giveBack(r *reservation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetLocked(r)
	m.advanceLocked()
}

// forgetLocked records that a reply is no longer being made.
func (m *room) forgetLocked(r *reservation) {
	if _, late := m.overdue[r]; late {
		delete(m.overdue, r)
		m.late -= r.size
		return
	}
	delete(m.making, r)
	m.used -= m.share(r.size)
}

// watchLocked sets the timer that keeps requests from waiting forever for a blocked
// reply.
func (m *room) watchLocked() {
	if m.timer != nil {
		return
	}
	var oldest time.Time
	for r := range m.making {
		if m.mayBeLateLocked(r) && (oldest.IsZero() || r.granted.Before(oldest)) {
			oldest = r.granted
		}
	}
	if !oldest.IsZero() {
		wait := time.Until(oldest.Add(m.patienceLocked()))
		m.timer = time.AfterFunc(max(wait, minPatience), m.losePatience)
	}
}

// patienceLocked halves the patience for each overdue reservation. Requests that wait for
// the same file system take turns, and each would otherwise cost all others the whole
// patience.
func (m *room) patienceLocked() time.Duration {
	return max(m.patience>>len(m.overdue), minPatience)
}

func (m *room) mayBeLateLocked(r *reservation) bool {
	return len(m.overdue) == 0 || m.late+r.size <= maxOverdueBytes
}

// losePatience releases the room of replies that take too long.
func (m *room) losePatience() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.timer = nil
	if len(m.waiting) == 0 {
		return
	}
	patience := m.patienceLocked()
	for r := range m.making {
		if time.Since(r.granted) >= patience && m.mayBeLateLocked(r) {
			delete(m.making, r)
			m.used -= m.share(r.size)
			m.overdue[r] = struct{}{}
			m.late += r.size
		}
	}
	m.advanceLocked()
}

// close fails waiting and later reservations.
func (m *room) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.timer != nil {
		m.timer.Stop()
	}
	m.advanceLocked()
}
