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
	"execserver/server"
	"execserver/transport"
)

// visit is a client that wants a machine.
type visit struct {
	*Gateway
	roster *Roster
	by     *server.Admitted
	ctx    context.Context // ends with the request before the upgrade, and with the gateway
}

// maxClients bounds the clients of a gateway.
const maxClients = 16 << 10

// enter counts a client, or says why it cannot come in. The caller must call leave then.
func (g *Gateway) enter(p *auth.Principal) (refusal transport.Reason) {
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

func (g *Gateway) leave(p *auth.Principal) {
	g.clients.give(p, 1)
	g.work.Done()
}

// Texts for a machine that is not there, or not for this principal.
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

// none says that there is no machine with a selection of labels.
func none(selection []string) string {
	if len(selection) == 0 {
		return errNone
	}
	return errNoneMatches
}

// serveMachine connects a client with the machine that it names.
func (v *visit) serveMachine(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, pathMachine)
	if !v.by.Grant.Machine(name) {
		v.denied.Add(1)
		v.by.Refuse(name, "the machine is not for these credentials")
		// As if it were not there: what names there are is not for everybody.
		http.Error(w, errUnknown, http.StatusServiceUnavailable)
		return
	}
	machine, text := v.dial(v.ctx, name)
	if machine == nil {
		// Not 404, at which clients give up: a machine or a gateway may have started again, and
		// the session is still there.
		http.Error(w, text, http.StatusServiceUnavailable)
		return
	}
	client, err := transport.Upgrade(w, r, maxClientMessage)
	if err != nil {
		_ = machine.Close(transport.Reason{Code: transport.CodeGoingAway, Text: "the client is gone"})
		return
	}
	v.run(name, &relay{client: client, machine: machine, count: v.count, hold: v.hold})
}

// A client waits for its machine for dialTimeout at most, in attempts of attemptTimeout, and
// for unreachableTimeout if NATS knows no way to it: it connects to NATS again, or the servers
// of the cluster do to each other. Not longer, because another gateway may know the way; not
// shorter, because clients wait longer and longer after a refusal.
const (
	dialTimeout        = 2 * time.Second
	unreachableTimeout = 500 * time.Millisecond
	dialPause          = 50 * time.Millisecond
)

// dial opens a connection to a machine, in several attempts. If it cannot, machine is nil.
func (v *visit) dial(ctx context.Context, name string) (machine *natstransport.Conn, text string) {
	if busy := v.roster.beginDial(name, v.by.QuotaKey()); busy != "" {
		v.failed.Add(1)
		return nil, busy
	}
	defer v.roster.endDial(name, v.by.QuotaKey())
	ctx, cancel := context.WithTimeout(ctx, v.roster.waits.dial)
	defer cancel()
	giveUp := time.Now().Add(unreachableTimeout)
	for {
		machine, err := v.attempt(ctx, name)
		switch {
		case err == nil:
			return machine, ""
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			// The request went the way of a NATS server that has just gone.
		case !errors.Is(err, natstransport.ErrNoMachine):
			v.failed.Add(1)
			v.logFailure(name, err)
			return nil, textOf(err)
		case !v.roster.mayCome(name) || time.Now().After(giveUp) || !sleep(ctx, dialPause):
			v.unknown.Add(1)
			return nil, errUnknown
		}
	}
}

// attempt asks a machine for a connection once.
func (v *visit) attempt(ctx context.Context, name string) (*natstransport.Conn, error) {
	ctx, cancel := v.roster.waits.attempt(ctx)
	defer cancel()
	return v.roster.dialer.Dial(ctx, name, natstransport.Call{
		Instance: v.roster.instance(name), Remote: v.by.Remote, Hello: v.by.Passport(),
	})
}

// failurePause is the least time between two lines of the log about machines that do not
// accept connections: clients try again and again.
const failurePause = time.Second

// logFailure logs why a machine did not accept a connection.
func (g *Gateway) logFailure(name string, err error) {
	if leftOut, due := g.failures.Due(); due {
		g.log.Warn("cannot connect a client with a machine", "machine", name, "error", err, "not_logged_before", leftOut)
	}
}

// textOf says why a machine did not accept a connection. What it says itself is not for
// clients, but a refusal is.
func textOf(err error) string {
	if refused, ok := errors.AsType[*natstransport.RefusedError](err); ok && printable(refused.Reason, maxText) {
		return refused.Error()
	}
	return errSilent
}

// serveAny connects a client with the machine that has the least load, or that has the
// session which the client resumes.
func (v *visit) serveAny(w http.ResponseWriter, r *http.Request) {
	selection := r.URL.Query()["label"]
	if !v.roster.any(selection, v.by.Grant.Machine) {
		v.unknown.Add(1)
		http.Error(w, none(selection), http.StatusServiceUnavailable)
		return
	}
	client, err := transport.Upgrade(w, r, maxClientMessage)
	if err != nil {
		return
	}
	first, err := v.greeting(client)
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
		// A client that learned of a session which no gateway can find would lose it.
		if err := v.roster.Remember(v.ctx, session, name); err != nil {
			v.log.Warn("cannot record where a session is; its client has to try again", "error", err)
			return &reasonError{transport.Reason{Code: transport.CodeTryAgainLater, Text: "the gateway cannot record the session now"}}
		}
		v.work.Go(func() { v.refresh(session, name) })
		return nil
	}
	v.run(name, &relay{client: client, machine: machine, count: v.count, hold: v.hold, peek: remember}, first)
}

// choose opens a connection to the machine that has a session, or to one with the least load
// that answers. If it cannot, machine is nil.
func (v *visit) choose(selection []string, session string) (name string, machine *natstransport.Conn, text string) {
	if session != "" {
		name, err := v.roster.Find(v.ctx, session)
		if err != nil {
			return "", nil, "the gateway cannot find the session now" // it may be there
		}
		if name != "" && v.by.Grant.Machine(name) {
			machine, text = v.dial(v.ctx, name)
			return name, machine, text
		}
	}
	ctx, cancel := context.WithTimeout(v.ctx, v.roster.waits.dial)
	defer cancel()
	var silent []string
	may := func(name string) bool { return v.by.Grant.Machine(name) && !slices.Contains(silent, name) }
	for text = none(selection); ctx.Err() == nil; {
		name := v.roster.Place(selection, may)
		if name == "" {
			break
		}
		if busy := v.roster.beginDial(name, v.by.QuotaKey()); busy != "" {
			silent, text = append(silent, name), busy
			continue
		}
		machine, err := v.attempt(ctx, name)
		v.roster.endDial(name, v.by.QuotaKey())
		if err == nil {
			v.placed.Add(1)
			return name, machine, ""
		}
		// It may have died, and is still listed.
		v.logFailure(name, err)
		silent, text = append(silent, name), textOf(err)
	}
	v.failed.Add(1)
	return "", nil, text
}

// refreshPlacement is the time between two records of the placement of a session whose client
// stays connected.
const refreshPlacement = 6 * time.Hour

// refresh keeps the placement of a session until the client has left.
func (v *visit) refresh(session, name string) {
	for sleep(v.ctx, refreshPlacement) {
		if err := v.roster.Remember(v.ctx, session, name); err != nil {
			v.log.Warn("cannot record where a session is; it may not be found in a day", "error", err)
		}
	}
}

// greetingTimeout bounds how long a client may take for its first message while its machine is
// not chosen yet, as a server does.
const greetingTimeout = 10 * time.Second

// greeting reads the first message of a client, in time.
func (v *visit) greeting(client transport.Conn) ([]byte, error) {
	timer := time.AfterFunc(greetingTimeout, func() {
		_ = client.Close(transport.Reason{Code: transport.CodePolicy, Text: "the client did not send initialize in time"})
	})
	defer timer.Stop()
	defer context.AfterFunc(v.closing, func() { _ = client.Close(shutdown) })()
	return readGreeting(client)
}

// run runs a relay, which Recheck and Close can end.
func (v *visit) run(machine string, one *relay, first ...[]byte) {
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

// begin makes a relay known, or says why it must not begin. The credentials may have been
// revoked while the client waited for its machine.
func (v *visit) begin(one *relay) (refusal transport.Reason) {
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

func (v *visit) end(one *relay) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.relays, one)
}
