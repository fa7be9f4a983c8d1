package server

import (
	"container/list"
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
// the one that has waited longest, of the address that has most of them: whoever
// sends a request at once is served, although others from the same address do not.
type Startups struct{ Start, Rate, Full int }

// DefaultStartups are the Startups of a server unless told otherwise.
var DefaultStartups = Startups{Start: 64, Rate: 30, Full: 256}

// minStartupAge is for how long a connection is not dropped for another one. The
// server accepts no faster than that allows: it would drop those whose requests it
// has not had the time to look at.
const minStartupAge = 50 * time.Millisecond

// startups are the connections of HTTP listeners that are not upgraded yet.
type startups struct {
	limits    Startups
	penalties *penalties

	mu       sync.Mutex
	pending  map[net.Conn]*list.Element // of *startup, in a list of bySource
	bySource map[string]*list.List      // in the order of arrival
}

// startup is one of them.
type startup struct {
	conn   net.Conn
	source string
	since  time.Time
	timer  *time.Timer
}

func newStartups(limits Startups, p *penalties) *startups {
	return &startups{limits: limits, penalties: p, pending: make(map[net.Conn]*list.Element), bySource: make(map[string]*list.List)}
}

// state is the ConnState of an http.Server.
func (s *startups) state(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew: // the listener waits
		s.makeRoom(conn)
		s.add(conn)
	case http.StateHijacked, http.StateClosed:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remove(conn)
	}
}

func (s *startups) add(conn net.Conn) {
	one := &startup{conn: conn, source: sourceOf(conn.RemoteAddr().String()), since: time.Now()}
	one.timer = time.AfterFunc(startupTimeout, func() {
		s.penalties.add(one.source, s.penalties.limits.GraceExceeded)
		abort(conn)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bySource[one.source] == nil {
		s.bySource[one.source] = list.New()
	}
	s.pending[conn] = s.bySource[one.source].PushBack(one)
}

// remove forgets a connection. The caller holds mu.
func (s *startups) remove(conn net.Conn) {
	element := s.pending[conn]
	if element == nil {
		return
	}
	one := element.Value.(*startup)
	one.timer.Stop()
	delete(s.pending, conn)
	of := s.bySource[one.source]
	if of.Remove(element); of.Len() == 0 {
		delete(s.bySource, one.source)
	}
}

// makeRoom drops a connection when there are too many for another one.
func (s *startups) makeRoom(conn net.Conn) {
	s.mu.Lock()
	n := len(s.pending)
	if n == 0 || !s.drops(n) && !scarce(conn) {
		s.mu.Unlock()
		return
	}
	victim := s.oldest()
	s.mu.Unlock()
	time.Sleep(minStartupAge - time.Since(victim.since))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending[victim.conn] != nil {
		s.remove(victim.conn)
		abort(victim.conn)
	}
}

// drops decides whether one more than n is one too many.
func (s *startups) drops(n int) bool {
	l := s.limits
	switch full := min(l.Full, maxPendingDescriptors()); {
	case n >= full:
		return true
	case n < l.Start:
		return false
	default:
		return rand.IntN(100) < l.Rate+(100-l.Rate)*(n-l.Start)/max(1, full-l.Start)
	}
}

// oldest is the connection that has waited longest of the source that has most.
func (s *startups) oldest() *startup {
	var most *list.List
	for _, of := range s.bySource {
		if most == nil || of.Len() > most.Len() {
			most = of
		}
	}
	return most.Front().Value.(*startup)
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
