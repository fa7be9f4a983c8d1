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

	"execserver/internal/quota"
)

// Limits of connections before the client has sent initialize.
const (
	maxPending        = 1024             // of all addresses; half of them for one
	handshakeTimeout  = 10 * time.Second // for the request, and again for initialize
	maxHandshakeBytes = 64 << 10         // of messages before initialize
)

var (
	errHandshakeTimeout = errors.New("the client did not send initialize within " + handshakeTimeout.String())
	errTooManyPending   = errors.New("too many connections are waiting for initialize")
)

// pending bounds the connections that have not completed a handshake. It always accepts a new
// connection. If the source of the connection has reached its limit, the oldest connection of
// that source is dropped; if all sources have, the oldest of the source with the most. So a client
// that completes its handshake promptly gets in, however many idle connections others make.
type pending struct {
	limit, perSource int
	after            func(time.Duration, func()) (stop func() bool) // afterFunc, except in tests

	mu      sync.Mutex
	sources map[string][]*pendingConnection // oldest first
	count   int
	begun   uint64 // handshakes so far
}

// pendingConnection is a connection that has not completed the handshake.
type pendingConnection struct {
	pending *pending
	source  string
	order   uint64      // number of the connection
	drop    func(error) // ends the connection
	stop    func() bool
}

// afterFunc is time.AfterFunc.
func afterFunc(d time.Duration, f func()) (stop func() bool) { return time.AfterFunc(d, f).Stop }

func newPending(limit int) *pending {
	return &pending{limit: limit, perSource: max(1, limit/2), after: afterFunc, sources: make(map[string][]*pendingConnection)}
}

// begin adds a connection. It calls drop with the reason at most once: when a newer connection
// needs its slot, or after handshakeTimeout.
func (p *pending) begin(source string, drop func(error)) *pendingConnection {
	h := &pendingConnection{pending: p, source: source, drop: drop}
	p.mu.Lock()
	var dropVictim func(error)
	if victim := p.victimLocked(source); victim != nil {
		p.removeLocked(victim)
		dropVictim = victim.drop
	}
	p.begun++
	p.count++
	h.order = p.begun
	p.sources[source] = append(p.sources[source], h)
	h.stop = p.after(handshakeTimeout, func() {
		if drop := h.take(); drop != nil {
			drop(errHandshakeTimeout)
		}
	})
	p.mu.Unlock()
	if dropVictim != nil {
		dropVictim(errTooManyPending)
	}
	return h
}

// pass changes what ends a connection that is still pending. If it is not, it is being closed.
func (h *pendingConnection) pass(drop func(error)) {
	h.pending.mu.Lock()
	defer h.pending.mu.Unlock()
	h.drop = drop
}

// take removes a connection, and returns what ends it, or nil if it is not pending any more.
func (h *pendingConnection) take() (drop func(error)) {
	h.pending.mu.Lock()
	defer h.pending.mu.Unlock()
	if !h.pending.removeLocked(h) {
		return nil
	}
	return h.drop
}

// done removes a connection, and reports whether it was still pending.
func (h *pendingConnection) done() bool {
	h.pending.mu.Lock()
	defer h.pending.mu.Unlock()
	return h.pending.removeLocked(h)
}

// victimLocked returns the connection to drop before one more of a source is added, or nil.
func (p *pending) victimLocked(source string) *pendingConnection {
	if own := p.sources[source]; len(own) >= p.perSource {
		return own[0]
	}
	if p.count < p.limit {
		return nil
	}
	var most []*pendingConnection
	for _, of := range p.sources {
		if len(of) > len(most) || len(of) == len(most) && of[0].order < most[0].order {
			most = of
		}
	}
	return most[0]
}

func (p *pending) removeLocked(h *pendingConnection) bool {
	of := p.sources[h.source]
	i := slices.Index(of, h)
	if i < 0 {
		return false
	}
	h.stop()
	p.count--
	if p.sources[h.source] = slices.Delete(of, i, i+1); len(of) == 1 {
		delete(p.sources, h.source)
	}
	return true
}

// connState returns the ConnState of an http.Server whose connections are pending until a
// handler has taken them over, or the server has answered their request.
func (p *pending) connState(refusals *refusals) func(net.Conn, http.ConnState) {
	var waiting sync.Map // of *pendingConnection, by net.Conn
	return func(conn net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew: // the listener waits for this
			waiting.Store(conn, p.begin(sourceOf(conn.RemoteAddr().String()), func(error) {
				refusals.counts.Add(RefusedHandshake)
				abort(conn)
			}))
		case http.StateHijacked, http.StateClosed:
			if h, ok := waiting.LoadAndDelete(conn); ok {
				h.(*pendingConnection).done()
			}
		}
	}
}

// abort closes a TCP connection without the close alert of TLS, which would wait for a peer that
// does not read.
func abort(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}

// sourceOf returns the source to which a remote address belongs: the IPv4 address, or the /64
// network of an IPv6 address.
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

// quotas count the resources that the principals of a server use at the same time, apart from
// those of their sessions. No principal can use up a resource, unless it is the only one.
type quotas struct {
	connections *quota.Quota // with a session, or that requested none
	forwards    *quota.Quota // forwarded connections
	requests    *quota.Quota // network connections for HTTP requests
	memory      *quota.Quota // bytes of large messages that arrive or are served
	operations  *quota.Quota // file operations under way
	handles     *quota.Quota // open files of principals that have quotas
}

func newQuotas(o *Options) quotas {
	return quotas{
		connections: quota.New(o.MaxConnections),
		forwards:    quota.New(min(maxAllForwards, quarterOfDescriptors())),
		requests:    quota.New(min(maxRequestConns, quarterOfDescriptors())),
		memory:      quota.New(maxMessageMemory),
		operations:  quota.New(maxFileOperations),
		handles:     quota.New(quarterOfDescriptors() / 2),
	}
}

// maxRequestConns bounds the network connections for the HTTP requests of all clients; a quarter of
// the descriptors is another bound.
const maxRequestConns = 1024

// maxMessageMemory bounds the memory of the large messages of all clients, from their arrival to
// the answer.
const maxMessageMemory = 512 << 20
