package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"execserver/internal/audit"
	"execserver/internal/auth"
	"execserver/internal/counter"
	"execserver/internal/peer"
	"execserver/internal/sandbox"
	"execserver/protocol"
)

// admission decides who may connect to a server: by the host and the origin of a request, by
// its credentials, and by the process that sends it.
type admission struct {
	opts         *Options
	log          *slog.Logger
	auth         *auth.Authenticator // nil admits everybody
	admitsNobody bool                // Options.Auth is nil
	audit        *audit.Log
	refusals     *refusals
	pending      *pending
	closing      context.Context // cancelled by Shutdown
	judge        peer.Checker
	overHTTP     atomic.Bool // the server serves WebSocket clients
}

// checkHost refuses requests of a browser for a foreign page whose name now resolves to
// this machine (DNS rebinding). On loopback the Host must be one that always means
// loopback, or one of Options.AllowHosts. So it must on a unix socket, to which a port of
// a person's machine may be forwarded.
func (a *admission) checkHost(r *http.Request) error {
	if local, _ := ends(r); !local.Addr().IsLoopback() && unixOf(r) == nil {
		return nil
	}
	name := r.Host
	if host, port, err := net.SplitHostPort(name); err == nil && strings.Trim(port, "0123456789") == "" {
		name = host
	}
	name = strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"), "."))
	if name == "localhost" {
		return nil
	}
	// Clients connect to 0.0.0.0 when the server reports that address.
	if address, err := netip.ParseAddr(name); err == nil && (address.Unmap().IsLoopback() || address.IsUnspecified()) {
		return nil
	}
	if slices.ContainsFunc(a.opts.AllowHosts, func(allowed string) bool { return strings.EqualFold(allowed, name) }) {
		return nil
	}
	return fmt.Errorf("the Host %.100q is not this machine's loopback; connect to 127.0.0.1 or localhost, or have the operator allow the host that "+
		"a proxy on this machine serves", r.Host)
}

// checkOrigin refuses web pages of other origins than Options.AllowOrigins. Only browsers
// send an Origin.
func (a *admission) checkOrigin(r *http.Request) bool {
	origins, ok := r.Header["Origin"]
	return !ok || len(origins) == 1 && slices.Contains(a.opts.AllowOrigins, origins[0])
}

// fromOwnPage reports whether a request comes from a page of the same scheme, host and port.
func fromOwnPage(r *http.Request) bool {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	origins := r.Header["Origin"]
	return len(origins) == 1 && strings.EqualFold(origins[0], scheme+"://"+r.Host)
}

// fetchedElsewhere reports whether a page of another origin caused a request that has no
// Origin. Browsers send such requests for images and frames.
func fetchedElsewhere(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return len(r.Header["Origin"]) == 0 && site != "" && site != "same-origin" && site != "none"
}

// navigates reports whether a browser opens a document, as when a person follows a link.
func navigates(r *http.Request) bool {
	return r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// admit authenticates a request. If the server does not admit its sender, it answers the
// request and returns nil.
func (a *admission) admit(w http.ResponseWriter, r *http.Request) *auth.Principal {
	if u := unixOf(r); u != nil {
		if a.refusePeer(w, r) {
			return nil
		}
		return u.principal
	}
	if a.admitsNobody {
		a.refusals.add(RefusedCredentials, r.RemoteAddr, errNoAuthenticator.Error())
		refuse(w, http.StatusForbidden, errNoAuthenticator.Error())
		return nil
	}
	principal, refusal := a.auth.Authenticate(r)
	if refusal != nil {
		a.refuseCredentials(r, refusal.Error())
		refusal.ServeHTTP(w, r)
		return nil
	}
	// This costs much more than checking a token, so only a client with a valid one may
	// cause it.
	if a.refusePeer(w, r) {
		return nil
	}
	return principal
}

// refuseCredentials counts and records that a request has wrong credentials, and delays the answer.
func (a *admission) refuseCredentials(r *http.Request, reason string) {
	a.refusals.add(RefusedCredentials, r.RemoteAddr, reason)
	a.refusals.backOff(r.Context())
	a.auditRefusal(r.RemoteAddr, reason)
}

// refusePeer refuses a request of a process that may not connect, and reports whether it
// did.
func (a *admission) refusePeer(w http.ResponseWriter, r *http.Request) bool {
	if u := unixOf(r); u != nil { // admitUnix has decided
		if u.refusal != nil {
			refuse(w, http.StatusForbidden, u.refusal.Error())
		}
		return u.refusal != nil
	}
	unseen, err := a.checkPeer(r)
	if err == nil && unseen != nil {
		err = a.awaitReader(w, r, unseen)
	}
	if err == nil {
		return false
	}
	err = a.addPeersHint(err)
	a.refusals.add(RefusedPeer, r.RemoteAddr, err.Error())
	a.auditRefusal(r.RemoteAddr, err.Error())
	refuse(w, http.StatusForbidden, err.Error())
	return true
}

// checkPeer checks the process that sends a request, if it is on this machine. An error means
// that the process may not connect. unseen is not nil if the process cannot be examined.
func (a *admission) checkPeer(r *http.Request) (unseen *peer.Socket, _ error) {
	local, remote := ends(r)
	ownOnly := local.Addr().IsLoopback() && a.auth == nil && !a.opts.AnyLoopbackPeer
	if !ownOnly && a.opts.AllowConfinedPeers {
		return nil, nil
	}
	found, here, err := a.judge.FindPeer(local, remote)
	switch {
	case peer.CanFindTCP() != nil:
		return nil, nil // warnOfPeers has logged it
	case err != nil:
		return nil, err
	case !here && ownOnly:
		return nil, errors.New("it cannot be found out which user this connection comes from")
	case !here:
		return nil, nil
	case ownOnly && found.UID != os.Geteuid() && found.UID != 0:
		return nil, fmt.Errorf("without authentication this server serves its own user, %d, and not user %d; "+
			"its operator can require a token, or admit every user of this machine", os.Geteuid(), found.UID)
	case a.opts.AllowConfinedPeers:
		return nil, nil
	}
	seen, err := a.judge.CheckTCP(found)
	if err != nil || seen {
		return nil, err
	}
	return &found, nil
}

// awaitReader makes a peer that cannot be examined prove that a process holds its socket, before
// the server acts on what has arrived over it. With an upgrade, the proof follows the answer. Until
// then the connection is pending.
func (a *admission) awaitReader(w http.ResponseWriter, r *http.Request, of *peer.Socket) error {
	await := func() error {
		ctx, cancel := context.WithCancelCause(a.closing)
		defer cancel(nil)
		defer a.pending.begin(sourceOf(r.RemoteAddr), cancel).done()
		return of.AwaitRead(ctx)
	}
	out, ok := w.(*response)
	if !ok { // nobody would call await after an upgrade
		return errors.New("the process at the other end of this connection cannot be examined")
	}
	out.upgraded = await
	switch {
	case r.Method == http.MethodGet, r.Method == http.MethodHead: // without an upgrade they change nothing
		return nil
	case !r.ProtoAtLeast(1, 1):
		return errors.New("the process at the other end of this connection cannot be examined; use HTTP/1.1")
	}
	w.WriteHeader(http.StatusContinue) // which every client skips
	return await()
}

// response is the response of a server.
type response struct {
	http.ResponseWriter
	upgraded func() error
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements http.Hijacker. It returns the socket itself, to which several buffers can be
// written at once.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if u, ok := conn.(*unixConn); ok {
		conn = u.Conn // rw still has the bytes that were read from u
	}
	return conn, rw, err
}

// Upgraded is called by transport.Upgrade.
func (w *response) Upgraded() error {
	if w.upgraded == nil {
		return nil
	}
	return w.upgraded()
}

// addPeersHint adds Options.ConfinedPeersHint to an error about a confined peer.
func (a *admission) addPeersHint(err error) error {
	if a.opts.ConfinedPeersHint == "" || !peer.IsConfinementError(err) {
		return err
	}
	return fmt.Errorf("%w (%s)", err, a.opts.ConfinedPeersHint)
}

// ends returns the addresses of the server's end of a request's connection and of the
// peer's.
func ends(r *http.Request) (local, remote netip.AddrPort) {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		local = netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), a.AddrPort().Port())
	}
	remote, _ = netip.ParseAddrPort(r.RemoteAddr)
	return local, netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
}

// checkNetwork refuses a sandbox with a network if the server could not recognize
// connections of its command.
func (a *admission) checkNetwork() error {
	a.judge.SetConfines()
	if !a.overHTTP.Load() {
		return nil
	}
	if err := peer.CanFindTCP(); err != nil {
		return &sandbox.UnavailableError{Reason: "this server serves WebSocket clients, and cannot tell a command with a network " +
			"from other clients: " + err.Error() + "; ask for a sandbox without a network, or let it listen on a unix socket"}
	}
	return nil
}

// warnOfPeers logs which unwanted peers a listener cannot refuse.
func (a *admission) warnOfPeers(l net.Listener) {
	judged := peer.CanCheck()
	if address, ok := l.Addr().(*net.TCPAddr); ok {
		err := peer.CanFindTCP()
		if err != nil && address.IP.IsLoopback() && a.auth == nil && !a.opts.AnyLoopbackPeer {
			a.log.Warn("every user of this machine can connect and run commands as the server's user: "+
				"it cannot tell who connects; require a token, or listen on a unix socket", "address", address, "error", err)
		}
		if judged == nil && !errors.Is(err, peer.ErrUnsupported) {
			judged = err
		}
	}
	if judged != nil && !a.opts.AllowConfinedPeers {
		a.log.Warn("commands in sandboxes and containers of this machine can connect as others can: "+
			"the server cannot tell which processes are confined", "address", l.Addr(), "error", judged)
	}
}

// isLocal reports whether a connection to an address ends on this machine, or may. The
// kernel decides that by its routes, which may name more addresses than interfaces have.
func (a *admission) isLocal(ip netip.Addr) bool {
	if ip.IsUnspecified() || a.judge.Addresses.Contains(ip, netip.Addr{}) {
		return true
	}
	local, err := peer.IsLocal(ip)
	return local || err != nil && !errors.Is(err, peer.ErrUnsupported)
}

// auditRefusal records a client that was not admitted.
func (a *admission) auditRefusal(remote, reason string) {
	a.audit.Refused(audit.Event{Event: "authentication refused", Remote: remote, Reason: reason})
}

// authBackoff is how long the server delays the answer to wrong credentials, which slows down
// guessing.
const authBackoff = 250 * time.Millisecond

// maxSources bounds the remembered addresses. Further addresses share one entry.
const maxSources = 4096

// refusalPause is how long the server counts further refusals of an address instead of
// logging them.
const refusalPause = time.Minute

// refusals counts, logs and delays refusals.
type refusals struct {
	log     *slog.Logger
	counts  counter.Table[RefusalReason]
	delay   time.Duration
	delayed chan struct{} // as many as may wait

	mu       sync.Mutex
	unlogged map[string]*unlogged // by source
}

// unlogged are refusals of an address that are not logged yet.
type unlogged struct {
	count  int
	reason string // of the last
}

// newRefusals returns refusals of which maxDelayed may wait at the same time.
func newRefusals(log *slog.Logger, maxDelayed int) *refusals {
	return &refusals{
		log: log, delay: authBackoff, delayed: make(chan struct{}, maxDelayed), unlogged: make(map[string]*unlogged),
	}
}

// backOff delays the answer to wrong credentials, unless too many answers wait already: each of them
// holds a descriptor.
func (r *refusals) backOff(ctx context.Context) {
	select {
	case r.delayed <- struct{}{}:
	default:
		return
	}
	defer func() { <-r.delayed }()
	timer := time.NewTimer(r.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// add counts a refusal, and logs it.
func (r *refusals) add(of RefusalReason, remote, text string) {
	r.counts.Add(of)
	r.record(remote, text)
}

// record logs a refusal: the first of an address at once, further ones together once a
// minute.
func (r *refusals) record(remote, reason string) {
	reason = protocol.Shorten(reason)
	r.mu.Lock()
	defer r.mu.Unlock()
	source := sourceOf(remote)
	if r.unlogged[source] == nil && len(r.unlogged) >= maxSources {
		source = "others"
	}
	if known := r.unlogged[source]; known != nil {
		known.count, known.reason = known.count+1, reason
		return
	}
	r.unlogged[source] = &unlogged{}
	r.log.Warn("connection refused", "remote", remote, "reason", reason)
	time.AfterFunc(refusalPause, func() { r.logMore(source) })
}

// logMore logs the refusals since the last time.
func (r *refusals) logMore(source string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.unlogged[source]
	if known.count == 0 {
		delete(r.unlogged, source)
		return
	}
	r.log.Warn("more connections refused", "source", source, "count", known.count, "lastReason", known.reason)
	*known = unlogged{}
	time.AfterFunc(refusalPause, func() { r.logMore(source) })
}

// httpLog is the ErrorLog of an http.Server. It logs what peers cause like other
// refusals.
type httpLog struct{ *refusals }

// Write logs a line of package net/http.
func (l httpLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	failure, ofHandshake := strings.CutPrefix(text, "http: TLS handshake error from ")
	if remote, reason, ok := strings.Cut(failure, ": "); ofHandshake && ok {
		l.add(RefusedTLS, remote, "TLS handshake: "+reason)
	} else {
		l.log.Warn(text)
	}
	return len(line), nil
}
