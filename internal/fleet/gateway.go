package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"execserver/internal/auth"
	"execserver/transport"
	"execserver/transport/natstransport"
)

// Paths of a gateway.
const (
	pathMachine = "/env/"
	pathAny     = "/any"
	pathFleet   = "/fleet"
)

// dialTimeout bounds how long a machine may take to accept a connection, in attempts of
// attemptTimeout.
const dialTimeout = 5 * time.Second

// maxClientMessage is the size of the largest message of a client, a little above that of a
// machine, which answers a message above its own limit with an error.
const maxClientMessage = transport.DefaultMaxMessageBytes + 64<<10

// Counts are what a gateway has done.
type Counts struct {
	Relays             int    // connections now
	Relayed            uint64 // connections so far
	ToMachines         uint64 // bytes
	ToClients          uint64 // bytes
	Placed             uint64 // by /any
	Unknown            uint64 // requests for machines that are not there
	Denied             uint64 // requests for machines that the credentials do not allow
	Failed             uint64 // connections that a machine did not accept in time or refused
	Lost               uint64 // connections that ended with the way to their machine
	Machines, Draining map[string]int
}

// Gateway serves clients of the machines of one or more accounts. It implements
// server.Gateway.
type Gateway struct {
	log     *slog.Logger
	rosters map[string]*Roster // by account

	relayed, toMachines, toClients, placed, unknown, denied, failed, lost atomic.Uint64

	mu     sync.Mutex
	relays map[*relay]*auth.Principal
	of     map[string]int // how many of relays a principal has
	closed bool
	work   sync.WaitGroup
}

// NewGateway returns a gateway to the machines of no account.
func NewGateway(log *slog.Logger) *Gateway {
	return &Gateway{log: log, rosters: make(map[string]*Roster), relays: make(map[*relay]*auth.Principal), of: make(map[string]int)}
}

// Add adds an account. It must not be called once the gateway serves. The roster stays the
// caller's.
func (g *Gateway) Add(account string, roster *Roster) { g.rosters[account] = roster }

// Serves implements server.Gateway.
func (g *Gateway) Serves(path string) bool {
	return strings.HasPrefix(path, pathMachine) || path == pathAny || path == pathFleet || strings.HasPrefix(path, pathFleet+"/")
}

// Upgrades implements server.Gateway.
func (g *Gateway) Upgrades(path string) bool {
	return strings.HasPrefix(path, pathMachine) || path == pathAny
}

// Serve implements server.Gateway.
func (g *Gateway) Serve(w http.ResponseWriter, r *http.Request, p *auth.Principal) {
	roster := g.rosters[p.Grant.InAccount()]
	if roster == nil {
		g.denied.Add(1)
		refuse(w, http.StatusForbidden, "this gateway has no account of these credentials")
		return
	}
	switch path := r.URL.Path; {
	case path == pathAny:
		g.serveAny(w, r, p, roster)
	case strings.HasPrefix(path, pathMachine):
		g.serveMachine(w, r, p, roster)
	default:
		g.serveFleet(w, r, p, roster)
	}
}

func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // the client may be gone
}

// serveMachine connects a client with the machine that it names.
func (g *Gateway) serveMachine(w http.ResponseWriter, r *http.Request, p *auth.Principal, roster *Roster) {
	name := strings.TrimPrefix(r.URL.Path, pathMachine)
	if !p.Grant.Machine(name) {
		g.denied.Add(1)
		// As if it were not there: what names there are is not for everybody.
		refuse(w, http.StatusServiceUnavailable, errUnknown)
		return
	}
	machine, text := g.dial(r, roster, name, p)
	if machine == nil {
		// Not 404, at which clients give up: a machine or a gateway may have started again, and
		// the session is still there.
		refuse(w, http.StatusServiceUnavailable, text)
		return
	}
	client, err := transport.Upgrade(w, r, maxClientMessage)
	if err != nil {
		_ = machine.Close(transport.Reason{Code: transport.CodeGoingAway, Text: "the client is gone"})
		return
	}
	g.run(&relay{client: client, machine: machine, count: g.count}, p)
}

// errUnknown is the text for a machine that is not there, or not for this principal.
const errUnknown = "no such machine is connected"

const errNoneMatches = "no machine with these labels is connected and takes new sessions"

// dialPause is the time between two attempts to reach a machine that may be there, but cannot
// be reached: it connects to NATS again, or the servers of the cluster do to each other.
// Clients wait longer and longer after a refusal.
const dialPause = 50 * time.Millisecond

// dial opens a connection to a machine. If it cannot, machine is nil.
func (g *Gateway) dial(r *http.Request, roster *Roster, name string, p *auth.Principal) (machine *natstransport.Conn, text string) {
	ctx, cancel := context.WithTimeout(r.Context(), dialTimeout)
	defer cancel()
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		machine, err := roster.dialer.Dial(attempt, name, natstransport.Call{Instance: roster.instance(name), Remote: r.RemoteAddr, Hello: p.Passport()})
		cancel()
		switch {
		case err == nil:
			return machine, ""
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			// The request went the way of a NATS server that has just gone.
		case !errors.Is(err, natstransport.ErrNoMachine):
			g.failed.Add(1)
			g.log.Warn("cannot connect a client with a machine", "machine", name, "error", err)
			return nil, "the machine does not answer"
		case !roster.mayCome(name) || !sleep(ctx, dialPause):
			g.unknown.Add(1)
			return nil, errUnknown
		}
	}
}

// serveAny connects a client with the machine that has the least load, or that has the
// session which the client resumes.
func (g *Gateway) serveAny(w http.ResponseWriter, r *http.Request, p *auth.Principal, roster *Roster) {
	selection := r.URL.Query()["label"]
	if !roster.any(selection, p.Grant.Machine) {
		g.unknown.Add(1)
		refuse(w, http.StatusServiceUnavailable, errNoneMatches)
		return
	}
	client, err := transport.Upgrade(w, r, maxClientMessage)
	if err != nil {
		return
	}
	first, err := g.greeting(client)
	if err != nil {
		_ = client.Close(reasonOf(err, "no greeting came"))
		return
	}
	name := ""
	if session := sessionOf(first); session != "" {
		name = roster.Find(r.Context(), session)
	}
	if name == "" || !p.Grant.Machine(name) {
		if name = roster.Place(selection, p.Grant.Machine); name == "" {
			_ = client.Close(transport.Reason{Code: transport.CodeTryAgainLater, Text: errNoneMatches})
			return
		}
		g.placed.Add(1)
	}
	machine, text := g.dial(r, roster, name, p)
	if machine == nil {
		_ = client.Close(transport.Reason{Code: transport.CodeTryAgainLater, Text: text})
		return
	}
	remember := func(msg []byte) bool {
		session := sessionIn(msg)
		if session != "" {
			roster.Remember(session, name)
		}
		return session != ""
	}
	g.run(&relay{client: client, machine: machine, count: g.count, peek: remember}, p, first)
}

// Bounds of the first message of a client whose machine is not chosen yet, as a server has
// them.
const (
	greetingTimeout = 10 * time.Second
	maxGreeting     = 64 << 10
)

// greeting reads the first message of a client.
func (g *Gateway) greeting(client transport.Conn) ([]byte, error) {
	if limited, ok := client.(transport.Limited); ok {
		limited.LimitTotal(maxGreeting)
		defer limited.LimitTotal(0)
	}
	timer := time.AfterFunc(greetingTimeout, func() {
		_ = client.Close(transport.Reason{Code: transport.CodePolicy, Text: "the client did not send initialize in time"})
	})
	defer timer.Stop()
	return client.Read(nil)
}

// maxRelays bounds the connections of a gateway, and maxRelaysOfOne those of one principal
// where there are others.
const (
	maxRelays      = 16 << 10
	maxRelaysOfOne = maxRelays / 4
)

// run runs a relay, which Recheck and Close can end.
func (g *Gateway) run(one *relay, p *auth.Principal, first ...[]byte) {
	g.mu.Lock()
	refusal := transport.Reason{}
	switch {
	case g.closed:
		refusal = shutdown
	case len(g.relays) >= maxRelays:
		refusal = tooMany(maxRelays)
	case !p.Alone && g.of[p.Name] >= maxRelaysOfOne:
		refusal = tooMany(maxRelaysOfOne)
	}
	if refusal.Code != 0 {
		g.mu.Unlock()
		one.end(refusal)
		return
	}
	g.of[p.Name]++
	g.relays[one] = p
	g.work.Add(1)
	g.mu.Unlock()
	g.relayed.Add(1)
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.relays, one)
		if g.of[p.Name]--; g.of[p.Name] == 0 {
			delete(g.of, p.Name)
		}
		g.work.Done()
	}()
	one.run(first...)
}

var (
	shutdown = transport.Reason{Code: transport.CodeGoingAway, Text: "the gateway shuts down"}
	revoked  = transport.Reason{Code: transport.CodePolicy, Text: "the credentials of this connection have been revoked or changed"}
)

func tooMany(limit int) transport.Reason {
	return transport.Reason{Code: transport.CodeTryAgainLater, Text: fmt.Sprintf("the gateway has its limit of %d connections", limit)}
}

func (g *Gateway) count(toMachine bool, bytes int) {
	if toMachine {
		g.toMachines.Add(uint64(bytes))
	} else {
		g.toClients.Add(uint64(bytes))
	}
}

// Lost counts connections that ended with the way to their machine, for
// natstransport.Options.
func (g *Gateway) Lost(connections int) { g.lost.Add(uint64(connections)) }

// Recheck implements server.Gateway.
func (g *Gateway) Recheck(holds func(*auth.Principal) bool) {
	for one, p := range g.all() {
		if !holds(p) {
			one.end(revoked)
		}
	}
}

func (g *Gateway) all() map[*relay]*auth.Principal {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[*relay]*auth.Principal, len(g.relays))
	for one, p := range g.relays {
		all[one] = p
	}
	return all
}

// Close ends all connections, and waits for their goroutines. Clients may come back at
// another gateway.
func (g *Gateway) Close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	for one := range g.all() {
		one.end(shutdown)
	}
	g.work.Wait()
}

// Counts returns what the gateway has done.
func (g *Gateway) Counts() Counts {
	g.mu.Lock()
	c := Counts{Relays: len(g.relays)}
	g.mu.Unlock()
	c.Relayed, c.ToMachines, c.ToClients, c.Placed = g.relayed.Load(), g.toMachines.Load(), g.toClients.Load(), g.placed.Load()
	c.Unknown, c.Denied, c.Failed, c.Lost = g.unknown.Load(), g.denied.Load(), g.failed.Load(), g.lost.Load()
	c.Machines, c.Draining = make(map[string]int), make(map[string]int)
	for account, roster := range g.rosters {
		for _, m := range roster.List() {
			c.Machines[account]++
			if m.Load.Draining {
				c.Draining[account]++
			}
		}
	}
	return c
}

// serveFleet serves the list of machines, and requests about one of them.
func (g *Gateway) serveFleet(w http.ResponseWriter, r *http.Request, p *auth.Principal, roster *Roster) {
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, pathFleet), "/")
	name, drain := strings.CutSuffix(name, "/drain")
	switch {
	case name == "" && !drain && r.Method == http.MethodGet:
		g.list(w, r, p, roster)
		return
	case !natstransport.ValidName(name) || !p.Grant.Machine(name):
		refuse(w, http.StatusNotFound, errUnknown)
		return
	case !(drain && r.Method == http.MethodPost) && !(!drain && r.Method == http.MethodDelete):
		refuse(w, http.StatusMethodNotAllowed, "expected GET /fleet, POST /fleet/NAME/drain or DELETE /fleet/NAME")
		return
	case !p.Grant.Allows(auth.Full):
		g.denied.Add(1)
		refuse(w, http.StatusForbidden, "these credentials do not allow to change the fleet; that needs the scope full")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), dialTimeout)
	defer cancel()
	change := roster.Forget
	if drain {
		change = roster.Drain
	}
	switch err := change(ctx, name); {
	case errors.Is(err, natstransport.ErrNoMachine):
		refuse(w, http.StatusNotFound, errUnknown)
	case err != nil:
		g.log.Warn("cannot change a machine of the fleet", "machine", name, "error", err)
		refuse(w, http.StatusServiceUnavailable, "the machine does not answer")
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// list answers with the machines that a principal may use.
func (g *Gateway) list(w http.ResponseWriter, r *http.Request, p *auth.Principal, roster *Roster) {
	select {
	case <-roster.ready:
	case <-r.Context().Done():
		return
	case <-time.After(dialTimeout):
		refuse(w, http.StatusServiceUnavailable, "the gateway does not know the machines yet")
		return
	}
	selection := r.URL.Query()["label"]
	list := []Member{}
	for _, m := range roster.List() {
		if p.Grant.Machine(m.Name) && m.Matches(selection) {
			list = append(list, m)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list) // the client may be gone
}
