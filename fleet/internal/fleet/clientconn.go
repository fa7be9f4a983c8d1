package fleet

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"execserver/fleet/natstransport"
	"execserver/internal/auth"
	"execserver/internal/extension"
	"execserver/transport"
)

// clientConn is a client's connection to a machine, from the request to the end.
type clientConn struct {
	*Gateway
	registry *Registry
	by       *extension.Admitted
	ctx      context.Context // ends with the request before the upgrade, and with the gateway
}

// maxClients bounds the clients of a gateway.
const maxClients = 16 << 10

// admit counts a client, or returns the reason to refuse it. The caller must call release for
// an admitted client.
func (g *Gateway) admit(p *auth.Principal) (refusal transport.Reason) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing.Err() != nil {
		return shutdown
	}
	if limit := g.clients.take(p, g.several(), 1); limit != 0 {
		return tooMany(limit)
	}
	g.work.Add(1)
	return transport.Reason{}
}

func (g *Gateway) release(p *auth.Principal) {
	g.clients.give(p, 1)
	g.work.Done()
}

// Texts for a machine that does not exist or that this principal may not use.
const (
	errUnknown     = "no such machine is connected"
	errNone        = "no machine is connected and takes new sessions"
	errNoneMatches = "no machine with these labels is connected and takes new sessions"
	errBusy        = "too many clients wait for the machine; try again"
	errManyWait    = "too many clients of these credentials wait for machines; try again"
	errAccountBusy = "too many clients of the account wait for machines; try again"
	errSilent      = "the machine does not answer"
	errNotReady    = "the gateway does not know the machines yet"
)

// none returns the text if no machine has the labels of a selection.
func none(selection []string) string {
	if len(selection) == 0 {
		return errNone
	}
	return errNoneMatches
}

// serveMachine connects a client with the machine that it names.
func (v *clientConn) serveMachine(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, pathMachine)
	if !v.by.Grant.AllowsMachine(name) {
		v.denied.Add(1)
		v.by.Refuse(name, "the machine is not for these credentials")
		// The same answer as for a missing machine: names are not public.
		http.Error(w, errUnknown, http.StatusServiceUnavailable)
		return
	}
	machine, text := v.dial(v.ctx, name)
	if machine == nil {
		// Not 404, at which clients give up: a machine or a gateway may be restarting, and the
		// session still exists.
		http.Error(w, text, http.StatusServiceUnavailable)
		return
	}
	client, err := transport.Upgrade(w, r, maxClientMessage)
	if err != nil {
		_ = machine.Close(transport.Reason{Code: transport.CodeGoingAway, Text: "the client is gone"})
		return
	}
	v.run(name, &relay{client: client, machine: machine, count: v.count, reserve: v.reserve})
}

// A client waits at most dialTimeout for its machine, in attempts of attemptTimeout, and
// unreachableTimeout if NATS has no route to it: the machine may be reconnecting to NATS, or
// the servers of the cluster to each other. Not longer, because another gateway may have a
// route; not shorter, because clients back off after a refusal.
const (
	dialTimeout        = 2 * time.Second
	unreachableTimeout = 500 * time.Millisecond
	dialPause          = 50 * time.Millisecond
)

// dial opens a connection to a machine, in several attempts. If it cannot, machine is nil.
func (v *clientConn) dial(ctx context.Context, name string) (machine *natstransport.Conn, text string) {
	if busy := v.registry.beginDial(name, v.by.QuotaKey()); busy != "" {
		v.failed.Add(1)
		return nil, busy
	}
	defer v.registry.endDial(name, v.by.QuotaKey())
	ctx, cancel := context.WithTimeout(ctx, v.registry.timeouts.dial)
	defer cancel()
	giveUp := time.Now().Add(unreachableTimeout)
	for {
		machine, err := v.attempt(ctx, name)
		switch {
		case err == nil:
			return machine, ""
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			// The request was lost with a NATS server that has just ended.
		case !errors.Is(err, natstransport.ErrNoMachine):
			v.failed.Add(1)
			v.logFailure(name, err)
			return nil, failureText(err)
		case !v.registry.mayConnect(name) || time.Now().After(giveUp) || !sleep(ctx, dialPause):
			v.unknown.Add(1)
			return nil, errUnknown
		}
	}
}

// attempt asks a machine for a connection once.
func (v *clientConn) attempt(ctx context.Context, name string) (*natstransport.Conn, error) {
	ctx, cancel := v.registry.timeouts.attempt(ctx)
	defer cancel()
	return v.registry.dialer.Dial(ctx, name, natstransport.Call{
		Instance: v.registry.instance(name), Remote: v.by.Remote, Hello: v.by.Assertion(),
	})
}

// failurePause is the minimum time between log messages about machines that do not accept
// connections, because clients retry.
const failurePause = time.Second

// logFailure logs why a machine did not accept a connection.
func (g *Gateway) logFailure(name string, err error) {
	if suppressed, ok := g.failures.Allow(); ok {
		g.log.Warn("cannot connect a client with a machine", "machine", name, "error", err, "suppressed", suppressed)
	}
}

// failureText returns the text for a client whose machine did not accept a connection. It
// includes the reason of a refusal, but no other errors of the machine.
func failureText(err error) string {
	if refused, ok := errors.AsType[*natstransport.RefusedError](err); ok && printable(refused.Reason, maxText) {
		return refused.Error()
	}
	return errSilent
}

// serveAny connects a client with the machine of the session that it resumes, or with the one
// with the least load.
func (v *clientConn) serveAny(w http.ResponseWriter, r *http.Request) {
	selection := r.URL.Query()["label"]
	if !v.registry.any(selection, v.by.Grant.AllowsMachine) {
		v.unknown.Add(1)
		http.Error(w, none(selection), http.StatusServiceUnavailable)
		return
	}
	client, err := transport.Upgrade(w, r, maxClientMessage)
	if err != nil {
		return
	}
	first, err := v.firstMessage(client)
	if err != nil {
		_ = client.Close(reasonOf(err, "no greeting came"))
		return
	}
	name, machine, text := v.choose(selection, sessionOf(first))
	if machine == nil {
		_ = client.Close(transport.Reason{Code: transport.CodeTryAgainLater, Text: text})
		return
	}
	remember := func(answer []byte) error {
		session := sessionIn(answer)
		if session == "" {
			return nil
		}
		// Otherwise the client would get a session that no gateway can find.
		if err := v.registry.Remember(v.ctx, session, name); err != nil {
			v.log.Warn("cannot record where a session is; its client has to try again", "error", err)
			return &reasonError{transport.Reason{Code: transport.CodeTryAgainLater, Text: "the gateway cannot record the session now"}}
		}
		v.work.Go(func() { v.refresh(session, name) })
		return nil
	}
	v.run(name, &relay{client: client, machine: machine, count: v.count, reserve: v.reserve, peek: remember}, first)
}

// choose opens a connection to the machine of a session, or to the one with the least load
// that answers. If it fails, machine is nil.
func (v *clientConn) choose(selection []string, session string) (name string, machine *natstransport.Conn, text string) {
	if session != "" {
		name, err := v.registry.Find(v.ctx, session)
		if err != nil {
			return "", nil, "the gateway cannot find the session now" // it may be there
		}
		if name != "" && v.by.Grant.AllowsMachine(name) {
			machine, text = v.dial(v.ctx, name)
			return name, machine, text
		}
	}
	ctx, cancel := context.WithTimeout(v.ctx, v.registry.timeouts.dial)
	defer cancel()
	var silent []string
	may := func(name string) bool { return v.by.Grant.AllowsMachine(name) && !slices.Contains(silent, name) }
	for text = none(selection); ctx.Err() == nil; {
		name := v.registry.Place(selection, may)
		if name == "" {
			break
		}
		if busy := v.registry.beginDial(name, v.by.QuotaKey()); busy != "" {
			silent, text = append(silent, name), busy
			continue
		}
		machine, err := v.attempt(ctx, name)
		v.registry.endDial(name, v.by.QuotaKey())
		if err == nil {
			v.placed.Add(1)
			return name, machine, ""
		}
		// It may have ended, and is still listed.
		v.logFailure(name, err)
		silent, text = append(silent, name), failureText(err)
	}
	v.failed.Add(1)
	return "", nil, text
}

// refreshPlacement is the time between two records of the placement of a session whose client
// stays connected.
const refreshPlacement = 6 * time.Hour

// refresh keeps the placement of a session until the client has left.
func (v *clientConn) refresh(session, name string) {
	for sleep(v.ctx, refreshPlacement) {
		if err := v.registry.Remember(v.ctx, session, name); err != nil {
			v.log.Warn("cannot record where a session is; it may not be found in a day", "error", err)
		}
	}
}

// firstMessageTimeout bounds how long a client may take to send its first message, before its
// machine is chosen. A server has the same timeout.
const firstMessageTimeout = 10 * time.Second

// greeting reads the first message of a client, in time.
func (v *clientConn) firstMessage(client transport.Conn) ([]byte, error) {
	timer := time.AfterFunc(firstMessageTimeout, func() {
		_ = client.Close(transport.Reason{Code: transport.CodePolicy, Text: "the client did not send initialize in time"})
	})
	defer timer.Stop()
	defer context.AfterFunc(v.closing, func() { _ = client.Close(shutdown) })()
	return readFirstMessage(client)
}

// run runs a relay, which Recheck and Close can end.
func (v *clientConn) run(machine string, one *relay, first ...[]byte) {
	if refusal := v.begin(one); refusal.Code != 0 {
		one.end(refusal)
		return
	}
	defer v.end(one)
	if err := v.by.Commit("machine opened", machine); err != nil {
		one.end(transport.Reason{Code: transport.CodeInternal, Text: err.Error()})
		return
	}
	v.relayed.Add(1)
	reason := one.run(first...)
	v.by.Record("machine closed", machine, reason.Text)
}

// begin registers a relay, or returns the reason to refuse it. The credentials may have been
// revoked while the client waited for its machine.
func (v *clientConn) begin(one *relay) (refusal transport.Reason) {
	v.mu.Lock()
	v.relays[one] = v.by.Principal
	v.mu.Unlock()
	switch {
	case v.closing.Err() != nil:
		refusal = shutdown
	case !v.by.Holds():
		refusal = revoked
	default:
		return transport.Reason{}
	}
	v.end(one)
	return refusal
}

func (v *clientConn) end(one *relay) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.relays, one)
}
