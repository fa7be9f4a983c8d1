package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"execserver/fleet/natstransport"
	"execserver/internal/auth"
	"execserver/internal/extension"
	"execserver/transport"
)

// Paths of a gateway.
const (
	pathMachine = "/env/"
	pathAny     = "/any"
	pathFleet   = "/fleet"
)

// askTimeout bounds a request about the fleet.
const askTimeout = 5 * time.Second

// maxClientMessage is the size of the largest message of a client, a little above that of a
// machine, which answers a message above its own limit with an error.
const maxClientMessage = transport.DefaultMaxMessageBytes + 64<<10

// Counts are the counters of a gateway.
type Counts struct {
	Relays             int    // connections now
	Relayed            uint64 // connections so far
	ToMachines         uint64 // bytes
	ToClients          uint64 // bytes
	Held               int64  // bytes of memory of large messages now
	Placed             uint64 // by /any
	Unknown            uint64 // requests for machines that do not exist
	Denied             uint64 // requests for machines that the credentials do not allow
	Failed             uint64 // connections that a machine did not accept in time or refused
	Lost               uint64 // connections that ended because the connection to NATS was lost
	Machines, Draining map[string]int
}

// Gateway serves clients of the machines of one or more accounts. It implements
// extension.Gateway.
type Gateway struct {
	log        *slog.Logger
	failures   LogLimit             // about machines that do not accept connections
	registries map[string]*Registry // by account
	tokens     Tokens               // of machines; nil if the gateway makes none

	relayed, toMachines, toClients, placed, unknown, denied, failed, lost atomic.Uint64

	closing context.Context // ends with Close
	cancel  context.CancelFunc

	clients *quota // with those that have no relay yet
	held    *quota // bytes of large messages

	mu     sync.Mutex
	relays map[*relay]*auth.Principal
	work   sync.WaitGroup // clients
}

// NewGateway returns a gateway without accounts. Call Add for each.
func NewGateway(log *slog.Logger) *Gateway {
	ctx, cancel := context.WithCancel(context.Background())
	return &Gateway{
		log: log, failures: LogLimit{Pause: failurePause}, registries: make(map[string]*Registry), closing: ctx, cancel: cancel,
		relays: make(map[*relay]*auth.Principal), clients: newQuota(maxClients), held: newQuota(maxMessageMemory),
	}
}

// Add adds an account. It must not be called once the gateway serves. The registry stays the
// caller's.
func (g *Gateway) Add(account string, registry *Registry) { g.registries[account] = registry }

// Tokens makes and revokes the tokens of machines, one for each name, in the default account.
type Tokens interface {
	Make(name string) (token string, err error)
	Revoke(name string) (had bool, err error)
}

// MakeTokens lets clients make and revoke tokens of machines. It must not be called once the
// gateway serves.
func (g *Gateway) MakeTokens(tokens Tokens) { g.tokens = tokens }

// several reports whether there is more than one account.
func (g *Gateway) several() bool { return len(g.registries) > 1 }

// Serves implements extension.Gateway.
func (g *Gateway) Serves(path string) bool {
	return strings.HasPrefix(path, pathMachine) || path == pathAny || path == pathFleet || strings.HasPrefix(path, pathFleet+"/")
}

// Upgrades implements extension.Gateway.
func (g *Gateway) Upgrades(path string) bool {
	return strings.HasPrefix(path, pathMachine) || path == pathAny
}

// Ready implements extension.Gateway.
func (g *Gateway) Ready() error {
	for _, registry := range g.registries {
		if !registry.knows() {
			return errors.New(errNotReady)
		}
	}
	return nil
}

// Serve implements extension.Gateway.
func (g *Gateway) Serve(w http.ResponseWriter, r *http.Request, by *extension.Admitted) {
	registry := g.registries[by.Grant.InAccount()]
	if registry == nil {
		g.denied.Add(1)
		by.Refuse("", "the account is not this gateway's")
		http.Error(w, "this gateway has no account of these credentials", http.StatusForbidden)
		return
	}
	if !g.Upgrades(r.URL.Path) {
		g.serveFleet(w, r, by, registry)
		return
	}
	if refusal := g.admit(by.Principal); refusal.Code != 0 {
		http.Error(w, refusal.Text, http.StatusServiceUnavailable)
		return
	}
	defer g.release(by.Principal)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(g.closing, cancel)()
	one := &clientConn{Gateway: g, registry: registry, by: by, ctx: ctx}
	if r.URL.Path == pathAny {
		one.serveAny(w, r)
	} else {
		one.serveMachine(w, r)
	}
}

var (
	shutdown = transport.Reason{Code: transport.CodeGoingAway, Text: "the gateway shuts down"}
	revoked  = transport.Reason{Code: transport.CodePolicy, Text: "the credentials of this connection have been revoked or changed"}
)

func tooMany(limit int64) transport.Reason {
	return transport.Reason{Code: transport.CodeTryAgainLater, Text: fmt.Sprintf("the gateway has its limit of %d connections", limit)}
}

func (g *Gateway) count(toMachine bool, bytes int) {
	if toMachine {
		g.toMachines.Add(uint64(bytes))
	} else {
		g.toClients.Add(uint64(bytes))
	}
}

// Lost counts connections that ended because the connection to NATS was lost, for
// natstransport.Options.
func (g *Gateway) Lost(connections int) { g.lost.Add(uint64(connections)) }

// Recheck implements extension.Gateway. It does not wait for clients that do not read.
func (g *Gateway) Recheck(holds func(*auth.Principal) bool) {
	for one, p := range g.all() {
		if !holds(p) {
			go one.end(revoked) // soon: both sides bound how long their Close takes
		}
	}
}

func (g *Gateway) all() map[*relay]*auth.Principal {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.relays)
}

// Close ends all connections, and waits for their goroutines. Clients may reconnect to another
// gateway.
func (g *Gateway) Close() {
	g.mu.Lock()
	g.cancel() // no relay begins from here on
	g.mu.Unlock()
	for one := range g.all() {
		g.work.Go(func() { one.end(shutdown) })
	}
	g.work.Wait()
}

// Counts returns the counters of the gateway.
func (g *Gateway) Counts() Counts {
	g.mu.Lock()
	c := Counts{Relays: len(g.relays)}
	g.mu.Unlock()
	c.Relayed, c.ToMachines, c.ToClients, c.Placed = g.relayed.Load(), g.toMachines.Load(), g.toClients.Load(), g.placed.Load()
	c.Held = g.held.all()
	c.Unknown, c.Denied, c.Failed, c.Lost = g.unknown.Load(), g.denied.Load(), g.failed.Load(), g.lost.Load()
	c.Machines, c.Draining = make(map[string]int), make(map[string]int)
	for account, registry := range g.registries {
		for _, m := range registry.List() {
			c.Machines[account]++
			if m.Load.Draining {
				c.Draining[account]++
			}
		}
	}
	return c
}

// serveFleet serves the list of machines, and requests about one of them.
func (g *Gateway) serveFleet(w http.ResponseWriter, r *http.Request, by *extension.Admitted, registry *Registry) {
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, pathFleet), "/")
	name, drain := strings.CutSuffix(name, "/drain")
	name, token := strings.CutSuffix(name, "/token")
	switch {
	case name == "" && !drain && !token && r.Method == http.MethodGet:
		g.list(w, r, by.Principal, registry)
		return
	case !natstransport.ValidName(name):
		http.Error(w, errUnknown, http.StatusNotFound)
		return
	case !by.Grant.AllowsMachine(name):
		g.denied.Add(1)
		by.Refuse(name, "the machine is not for these credentials")
		http.Error(w, errUnknown, http.StatusNotFound)
		return
	case !((drain || token) && r.Method == http.MethodPost) && !(!drain && r.Method == http.MethodDelete):
		http.Error(w, "expected GET /fleet, POST /fleet/NAME/drain, DELETE /fleet/NAME, or POST or DELETE /fleet/NAME/token", http.StatusMethodNotAllowed)
		return
	case !by.Grant.Allows(auth.Full):
		g.denied.Add(1)
		by.Refuse(name, "the scope does not allow to change the fleet")
		http.Error(w, "these credentials do not allow to change the fleet; that needs the scope full", http.StatusForbidden)
		return
	case token:
		g.changeToken(w, by, name, r.Method == http.MethodPost)
		return
	}
	// The machine may not answer, so this counts like a client that waits for it.
	if busy := registry.beginDial(name, by.QuotaKey()); busy != "" {
		http.Error(w, busy, http.StatusServiceUnavailable)
		return
	}
	defer registry.endDial(name, by.QuotaKey())
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	if drain && !registry.mayConnect(name) || !drain && !registry.has(name) {
		http.Error(w, errUnknown, http.StatusNotFound)
		return
	}
	change, event := registry.Forget, "machine forgotten"
	if drain {
		change, event = registry.Drain, "machine drained"
	}
	if err := by.Commit(event, name); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	switch err := change(ctx, name); {
	case errors.Is(err, natstransport.ErrNoMachine):
		http.Error(w, errUnknown, http.StatusNotFound)
	case err != nil:
		g.log.Warn("cannot change a machine of the fleet", "machine", name, "error", err)
		http.Error(w, errSilent, http.StatusServiceUnavailable)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// Texts about tokens of machines.
const (
	errNoTokens = "this gateway makes no tokens of machines: the file of --machines, or the NATS servers of --nats, say which machines may join"
	errNoToken  = "there is no token for a machine of this name"
)

// changeToken makes or revokes the token of a machine. The caller has checked that it may.
func (g *Gateway) changeToken(w http.ResponseWriter, by *extension.Admitted, name string, makes bool) {
	if g.tokens == nil || by.Grant.InAccount() != auth.DefaultAccount {
		http.Error(w, errNoTokens, http.StatusForbidden)
		return
	}
	event := "machine token revoked"
	if makes {
		event = "machine token made"
	}
	if err := by.Commit(event, name); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if !makes {
		switch had, err := g.tokens.Revoke(name); {
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case !had:
			http.Error(w, errNoToken, http.StatusNotFound)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
		return
	}
	token, err := g.tokens.Make(name)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = io.WriteString(w, token+"\n") // the client may be gone: it makes another one then
}

// list answers with the machines that a principal may use.
func (g *Gateway) list(w http.ResponseWriter, r *http.Request, p *auth.Principal, registry *Registry) {
	select {
	case <-registry.ready:
	case <-r.Context().Done():
		return
	case <-time.After(askTimeout):
		http.Error(w, errNotReady, http.StatusServiceUnavailable)
		return
	}
	selection := r.URL.Query()["label"]
	list := []Member{}
	for _, m := range registry.List() {
		if p.Grant.AllowsMachine(m.Name) && m.Matches(selection) {
			m.Instance, m.Renewal = "", ""
			list = append(list, m)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list) // the client may be gone
}

// LogLimit limits how often a line is logged, and counts the lines that it suppresses. Its method
// may be called concurrently.
type LogLimit struct {
	Pause time.Duration // the least time between two lines; set it before the first call

	mu         sync.Mutex
	last       time.Time
	suppressed int // since last
}

// Allow reports whether to log a line now, and how many were suppressed since the last one.
func (l *LogLimit) Allow() (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.last) < l.Pause {
		l.suppressed++
		return 0, false
	}
	suppressed = l.suppressed
	l.last, l.suppressed = now, 0
	return suppressed, true
}
