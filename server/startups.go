package server

import (
	"container/list"
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// startupTimeout bounds everything before an upgrade: a TLS handshake, the header,
// the body, and the wait for a refusal.
const startupTimeout = 10 * time.Second

// Startups bound the connections that are not upgraded yet, as MaxStartups of sshd
// does: from Start on, each new one is at the expense of another with a probability
// that grows from Rate percent to certainty at Full. Unlike sshd, the server drops
// the one that has waited longest, of the address that has most of them, and none
// that it owes an answer: whoever sends a request at once is served, although others
// from the same address do not. Full bounds those as well that are upgraded and have
// not been initialized yet.
type Startups struct{ Start, Rate, Full int }

// DefaultStartups are the Startups of a server unless told otherwise.
var DefaultStartups = Startups{Start: 256, Rate: 30, Full: 1024}

// startups are the connections of HTTP listeners that are not upgraded yet.
type startups struct {
	limits    Startups
	penalties *penalties

	mu      sync.Mutex
	pending map[net.Conn]*startup
	waiting arrivals[*startup] // the server owes them nothing
}

// startup is one of them.
type startup struct {
	conn    net.Conn
	source  string
	timer   *time.Timer
	place   *list.Element // among those waiting; nil: the server looks at its request
	refused bool          // or has answered
}

func newStartups(limits Startups, p *penalties) *startups {
	return &startups{limits: limits, penalties: p, pending: make(map[net.Conn]*startup)}
}

// startupKey is where the context of a request has its startup.
type startupKey struct{}

// begin is the ConnContext of an http.Server. The listener waits for it.
func (s *startups) begin(ctx context.Context, conn net.Conn) context.Context {
	one := &startup{conn: conn, source: sourceOf(conn.RemoteAddr().String())}
	dropped := s.makeRoom(conn)
	if dropped != nil {
		abort(dropped)
	}
	if dropped != conn {
		s.add(one)
	}
	return context.WithValue(ctx, startupKey{}, one)
}

// state is the ConnState of an http.Server.
func (s *startups) state(conn net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.pending[conn]
	switch {
	case one == nil:
	case state == http.StateActive: // the header of a request is complete
		s.leavePlace(one)
	case state == http.StateHijacked, state == http.StateClosed:
		s.remove(one)
	}
}

// refused says that the connection of a request is the first that can be dropped.
func (s *startups) refused(r *http.Request) {
	one, _ := r.Context().Value(startupKey{}).(*startup)
	s.mu.Lock()
	defer s.mu.Unlock()
	if one != nil && s.pending[one.conn] == one && one.place == nil {
		one.refused = true
		one.place = s.waiting.addFirst(one.source, one)
	}
}

func (s *startups) add(one *startup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending[one.conn] = one
	one.place = s.waiting.add(one.source, one)
	one.timer = time.AfterFunc(startupTimeout, func() { s.expire(one) })
}

// expire ends a connection that has had its time, and penalises where it comes from.
func (s *startups) expire(one *startup) {
	s.mu.Lock()
	pending := s.pending[one.conn] == one
	s.mu.Unlock()
	if pending {
		s.penalties.add(one.source, s.penalties.limits.GraceExceeded)
		abort(one.conn)
	}
}

// remove forgets a connection. The caller holds mu.
func (s *startups) remove(one *startup) {
	one.timer.Stop()
	delete(s.pending, one.conn)
	s.leavePlace(one)
}

// leavePlace is for one that must not be dropped. The caller holds mu.
func (s *startups) leavePlace(one *startup) {
	if one.place != nil {
		s.waiting.remove(one.place)
		one.place = nil
	}
}

// makeRoom returns what must be dropped for a new connection; nil: nothing, conn:
// itself, because the server is about to answer all the others.
func (s *startups) makeRoom(conn net.Conn) (dropped net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.pending)
	if n == 0 || !s.drops(n) && !scarce(conn) {
		return nil
	}
	if victim := s.victim(); victim != nil {
		s.remove(victim)
		return victim.conn
	}
	if n >= s.full() {
		return conn
	}
	return nil
}

// full is how many there may be.
func (s *startups) full() int { return min(s.limits.Full, maxPendingDescriptors()) }

// drops decides whether one more than n is one too many.
func (s *startups) drops(n int) bool {
	l := s.limits
	switch full := s.full(); {
	case n >= full:
		return true
	case n < l.Start:
		return false
	default:
		return rand.IntN(100) < l.Rate+(100-l.Rate)*(n-l.Start)/max(1, full-l.Start)
	}
}

// victim chooses who has waited longest, but for those of whom something has arrived
// that the server has not had the time to read.
func (s *startups) victim() (victim *startup) {
	for one := range s.waiting.most {
		if one.refused || !unread(one.conn) {
			return one
		}
		if victim == nil {
			victim = one
		}
	}
	return victim
}

// abort closes a connection past TLS, which would wait for a peer that does not
// read, and without the answers that it has not taken.
func abort(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}

// sourceOf is whom a remote address is counted for: of IPv6, a whole network of 64
// bits belongs to one.
func sourceOf(remote string) string {
	a, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	address := a.Addr().Unmap().WithZone("")
	if address.Is6() {
		network, _ := address.Prefix(64)
		return network.String()
	}
	return address.String()
}
