package server

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"execserver/transport"
)

// Limits of connections whose client has not initialized them yet.
const (
	maxPending        = 1024             // of all addresses; half of them for one
	handshakeTimeout  = 10 * time.Second // for the request, and again for initialize
	maxHandshakeBytes = 64 << 10         // of messages before initialize
)

var (
	errHandshakeTimeout = errors.New("the client did not send initialize within " + handshakeTimeout.String())
	errTooManyPending   = errors.New("too many connections are waiting for initialize")
)

// pending bounds the connections that have not completed a handshake. A new connection is always
// accepted. If its source has as many as it may, the oldest of that source makes way; if there are
// too many in all, the oldest of the source that has the most. So a client that completes its
// handshake promptly gets in, whatever number of idle connections somebody else makes.
type pending struct {
	limit, perSource int

	mu      sync.Mutex
	sources map[string][]*handshake // oldest first
	count   int
	begun   uint64 // handshakes so far
}

// handshake is a connection that has not completed it.
type handshake struct {
	pending *pending
	source  string
	order   uint64      // of its beginning
	drop    func(error) // ends the connection
	timer   *time.Timer
}

func newPending(limit int) *pending {
	return &pending{limit: limit, perSource: max(1, limit/2), sources: make(map[string][]*handshake)}
}

// begin adds a connection. It calls drop with the reason at most once: when the connection has to
// make way, or when handshakeTimeout is over.
func (p *pending) begin(source string, drop func(error)) *handshake {
	h := &handshake{pending: p, source: source, drop: drop}
	p.mu.Lock()
	victim := p.victimLocked(source)
	if victim != nil {
		p.removeLocked(victim)
	}
	p.begun++
	p.count++
	h.order = p.begun
	p.sources[source] = append(p.sources[source], h)
	h.timer = time.AfterFunc(handshakeTimeout, func() {
		if h.done() {
			drop(errHandshakeTimeout)
		}
	})
	p.mu.Unlock()
	if victim != nil {
		victim.drop(errTooManyPending)
	}
	return h
}

// done removes a connection, and reports whether it was still pending.
func (h *handshake) done() bool {
	h.pending.mu.Lock()
	defer h.pending.mu.Unlock()
	return h.pending.removeLocked(h)
}

// victimLocked returns the connection that must make way for one more of a source, or nil.
func (p *pending) victimLocked(source string) *handshake {
	if own := p.sources[source]; len(own) >= p.perSource {
		return own[0]
	}
	if p.count < p.limit {
		return nil
	}
	var most []*handshake
	for _, of := range p.sources {
		if len(of) > len(most) || len(of) == len(most) && of[0].order < most[0].order {
			most = of
		}
	}
	return most[0]
}

func (p *pending) removeLocked(h *handshake) bool {
	of := p.sources[h.source]
	i := slices.Index(of, h)
	if i < 0 {
		return false
	}
	h.timer.Stop()
	p.count--
	if p.sources[h.source] = slices.Delete(of, i, i+1); len(of) == 1 {
		delete(p.sources, h.source)
	}
	return true
}

// boundRequests returns the ConnState of an http.Server whose connections are pending until a
// handler has taken them over, or the server has answered their request.
func (s *Server) boundRequests() func(net.Conn, http.ConnState) {
	var handshakes sync.Map // of *handshake, by net.Conn
	return func(conn net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew: // the listener waits for this
			handshakes.Store(conn, s.pending.begin(sourceOf(conn.RemoteAddr().String()), func(error) {
				s.refusals.counts.Add(RefusedHandshake)
				abort(conn)
			}))
		case http.StateHijacked, http.StateClosed:
			if h, ok := handshakes.LoadAndDelete(conn); ok {
				h.(*handshake).done()
			}
		}
	}
}

// abort closes a TCP connection without the farewell of TLS, which would wait for a peer that does
// not read.
func abort(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}

// sourceOf returns the source for which a remote address counts: a whole IPv6 network of 64 bits
// is one.
func sourceOf(remote string) string {
	end, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	address := end.Addr().Unmap().WithZone("")
	if address.Is6() {
		network, _ := address.Prefix(64)
		return network.String()
	}
	return address.String()
}

// beginHandshake bounds the bytes of a connection and its time until its client has initialized it,
// on transports on which anybody may connect.
func (c *connection) beginHandshake(stream transport.Conn) {
	limited, ok := stream.(transport.Limited)
	if !ok || !c.resumable {
		return
	}
	limited.LimitTotal(maxHandshakeBytes)
	c.early = limited
	c.handshake = c.server.pending.begin(c.principal.Name+" "+sourceOf(c.remote), func(err error) {
		c.server.refusals.counts.Add(RefusedHandshake)
		if err == errTooManyPending {
			c.rpc.Close(transport.Reason{Code: transport.CodeTryAgainLater, Text: err.Error()}, err)
			return
		}
		c.end(err)
	})
}

// endHandshake lifts these bounds, because the client has initialized the connection or the
// connection has ended.
func (c *connection) endHandshake() {
	if c.handshake != nil {
		c.handshake.done()
	}
}
