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

// startupTimeout bounds everything before an upgrade: the TLS handshake, the header, the
// body, and the wait before a refusal.
const startupTimeout = 10 * time.Second

// Startups bound the connections that are not upgraded yet, like MaxStartups of sshd.
// From Start on, each new connection drops one with a probability that grows from Rate
// percent to certainty at Full. Unlike sshd, the server drops the connection that has
// waited longest, of the address that has most, and never one that it owes an answer. So
// it serves a client that sends its request at once, even if others from the same address
// do not. Full also bounds the upgraded connections that are not initialized yet.
//
// With Handler, your own http.Server bounds the connections that are not upgraded.
type Startups struct{ Start, Rate, Full int }

// DefaultStartups are a server's default Startups.
var DefaultStartups = Startups{Start: 256, Rate: 30, Full: 1024}

// startups are the connections of HTTP listeners that are not upgraded yet.
type startups struct {
	limits    Startups
	penalties *penalties

	mu      sync.Mutex
	pending map[net.Conn]*startup
	waiting arrivals[*startup] // connections to which the server owes no answer
}

// startup is a connection of an HTTP listener that is not upgraded yet.
type startup struct {
	conn    net.Conn
	source  string
	timer   *time.Timer
	place   *list.Element // its place in waiting; nil while the server handles its request
	refused bool          // the server has refused its request
}

func newStartups(limits Startups, p *penalties) *startups {
	return &startups{limits: limits, penalties: p, pending: make(map[net.Conn]*startup)}
}

// startupKey is the key of the startup in the context of a request.
type startupKey struct{}

// begin is the ConnContext of an http.Server. The listener waits for it.
func (s *startups) begin(ctx context.Context, conn net.Conn) context.Context {
	one := &startup{conn: conn, source: sourceOfConn(conn)}
	dropped := s.makeRoom(conn)
	if dropped != nil {
		s.penalties.counts.Add(RefusedStartups)
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

// refused records that the connection of a request is the first to be dropped.
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

// expire closes a connection whose time is over, and penalizes its address.
func (s *startups) expire(one *startup) {
	s.mu.Lock()
	pending := s.pending[one.conn] == one
	s.mu.Unlock()
	if pending {
		s.penalties.counts.Add(RefusedStartups)
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

// leavePlace keeps a connection from being dropped. The caller holds mu.
func (s *startups) leavePlace(one *startup) {
	if one.place != nil {
		s.waiting.remove(one.place)
		one.place = nil
	}
}

// makeRoom returns the connection to drop for a new one: nil for none, or conn itself if
// the server is about to answer all the others.
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

// full returns how many there may be.
func (s *startups) full() int { return min(s.limits.Full, quarterOfDescriptors()) }

// drops decides whether to drop a connection when there is one more than n.
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

// victim returns the connection that has waited longest, except connections with bytes
// that the server has not had time to read.
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

// abort closes the TCP connection without TLS, which would wait for a peer that does not
// read, and discards unread answers.
func abort(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}

// sourceOfConn returns the source for which a connection counts.
func sourceOfConn(conn net.Conn) string {
	if remote, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return sourceOfAddr(remote.AddrPort().Addr())
	}
	return sourceOf(conn.RemoteAddr().String())
}

// sourceOf returns the source for which a remote address counts.
func sourceOf(remote string) string {
	a, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	return sourceOfAddr(a.Addr())
}

// sourceOfAddr returns the source for which an address counts. A whole IPv6 network of
// 64 bits is one source.
func sourceOfAddr(a netip.Addr) string {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		network, _ := a.Prefix(64)
		return network.String()
	}
	return a.String()
}
