package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"execserver/fleet/natstransport"
)

// Registry is a gateway's view of the machines of one account. Its methods may be called
// concurrently.
type Registry struct {
	log       *slog.Logger
	nc        *nats.Conn
	replicas  int
	timeouts  timeouts
	dialer    *natstransport.Dialer
	cancel    context.CancelFunc
	ready     chan struct{} // closed when the machines are known
	once      sync.Once
	following atomic.Bool
	work      sync.WaitGroup

	mu            sync.Mutex
	members       map[string]*lease // all leases
	round         int               // counts how often the bucket was opened
	graceUntil    time.Time         // until when no claim is granted: the bucket was empty
	isNew         func(name string) bool
	registering   map[string]bool // machines with a recent request, and whether another was refused
	registrations int             // in progress
	dialing       map[string]int  // connections that wait for their machine
	dialingFor    map[string]int  // the same by principal
	waiting       int             // the sum of dialing
	buckets       *buckets        // nil until they are open and loaded
	closed        bool
}

// lease is the lease of a name, with the time of its last renewal as seen by this gateway.
type lease struct {
	Member
	revision uint64
	round    int
	at       time.Time   // when this revision arrived
	silent   bool        // it was old when the bucket was opened
	placed   []time.Time // when sessions were placed that its load may not include yet
}

// timeouts are how long a gateway waits for machines. Tests use others.
type timeouts struct {
	now          func() time.Time
	lifetime     time.Duration // of an entry without a heartbeat
	sessionsHold time.Duration // the same of a machine with sessions
	fresh        time.Duration // before a name is granted in an empty list
	dial         time.Duration // for a client that waits for its machine, in attempts
	attempt      func(context.Context) (context.Context, context.CancelFunc)
}

// defaultTimeouts are those of all gateways.
var defaultTimeouts = timeouts{
	now: time.Now, lifetime: Lifetime, sessionsHold: SessionsHold, fresh: Lifetime, dial: dialTimeout,
	attempt: func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, attemptTimeout)
	},
}

// unreported returns the placed sessions that a new heartbeat may not include yet, because it
// was sent before them. A placed session counts for at most placedFor, because it may never
// begin.
func (s *lease) unreported(next *lease, placedFor time.Duration) []time.Time {
	if s.Instance != next.Instance {
		return nil
	}
	shown := max(0, next.Load.Sessions-s.Load.Sessions)
	rest := s.placed[min(shown, len(s.placed)):]
	return slices.DeleteFunc(slices.Clone(rest), func(placed time.Time) bool { return next.at.Sub(placed) > placedFor })
}

// NewRegistry follows the machines of an account, to which nc is connected. replicas is how
// many NATS servers keep the bucket.
func NewRegistry(nc *nats.Conn, replicas int, log *slog.Logger, opts *natstransport.Options) (*Registry, error) {
	return newRegistry(nc, replicas, log, opts, defaultTimeouts)
}

func newRegistry(nc *nats.Conn, replicas int, log *slog.Logger, opts *natstransport.Options, w timeouts) (*Registry, error) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Registry{
		log: log, nc: nc, replicas: replicas, timeouts: w, dialer: natstransport.NewDialer(nc, opts), cancel: cancel,
		ready: make(chan struct{}), members: make(map[string]*lease),
		registering: make(map[string]bool), dialing: make(map[string]int), dialingFor: make(map[string]int),
	}
	stop, err := r.serveRegistrations(ctx)
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("serve the registrations of machines: %w", err)
	}
	r.work.Go(func() {
		defer stop()
		r.follow(ctx)
	})
	return r, nil
}

// GrantNew grants names for which isNew returns true at once, even if the list is new and
// empty: no machine can have had such a name before.
func (r *Registry) GrantNew(isNew func(name string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isNew = isNew
}

// retryPause is the time between two attempts to follow the bucket.
const retryPause = 500 * time.Millisecond

// follow follows the bucket until ctx ends.
func (r *Registry) follow(ctx context.Context) {
	for told := ""; ctx.Err() == nil; {
		err := r.watch(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != told {
			told = err.Error()
			r.log.Warn("cannot follow the machines of the fleet; trying again", "error", err)
		}
		sleep(ctx, retryPause)
	}
}

// openTimeout bounds one attempt to find or create the buckets.
const openTimeout = 5 * time.Second

// watch follows the bucket until it fails.
func (r *Registry) watch(ctx context.Context) error {
	r.reopening()
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	open, err := openBuckets(opening, r.nc, r.replicas, r.timeouts.sessionsHold+r.timeouts.lifetime)
	if err != nil {
		return err
	}
	watcher, err := open.members.WatchAll(ctx)
	if err != nil {
		return err
	}
	defer r.following.Store(false)
	defer func() { _ = watcher.Stop() }() // it has ended, or the connection has
	initial := true
	check := time.NewTicker(Lifetime)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case entry, ok := <-watcher.Updates():
			if !ok {
				return errors.New("the bucket is gone")
			}
			if entry == nil { // the end of what there was
				initial = false
				r.loaded(open)
				r.once.Do(func() { close(r.ready) })
				r.following.Store(true)
				continue
			}
			r.update(entry, initial)
		case <-check.C:
			if err := open.gone(ctx); err != nil {
				return err
			}
		}
	}
}

// reopening records that the bucket is about to be opened. No machine can register until its
// entries are loaded.
func (r *Registry) reopening() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round++
	r.buckets = nil
}

// loaded is called when the existing entries of the bucket have been loaded. An empty bucket may
// replace one that was lost. Machines with sessions have lost their leases with it, and claim
// their names again: no other machine gets a name before graceUntil.
func (r *Registry) loaded(open *buckets) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buckets = open
	granted := false
	for name, one := range r.members {
		if one.round != r.round {
			delete(r.members, name)
		} else if !one.Pending {
			granted = true
		}
	}
	if !granted {
		r.graceUntil = r.timeouts.now().Add(r.timeouts.fresh)
	}
}

// update handles an entry of the bucket. initial is set for an existing entry.
func (r *Registry) update(entry jetstream.KeyValueEntry, initial bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := &lease{revision: entry.Revision(), round: r.round, at: r.timeouts.now()}
	if entry.Operation() != jetstream.KeyValuePut || json.Unmarshal(entry.Value(), &one.Member) != nil || one.Name != entry.Key() {
		delete(r.members, entry.Key())
		return
	}
	before := r.members[one.Name]
	switch {
	case before == nil:
	case before.revision == one.revision && before.Instance == one.Instance:
		one.at, one.silent, one.placed = before.at, before.silent, before.placed
		initial = false
	default:
		one.placed = before.unreported(one, r.timeouts.dial)
	}
	if initial { // compares clocks of machines, which briefly affects only the list
		one.silent = time.Since(entry.Created()) > r.timeouts.lifetime
	}
	r.members[one.Name] = one
}

// listed reports whether a machine sends heartbeats, and has its name or has had it.
func (r *Registry) listed(one *lease) bool {
	return one != nil && !one.silent && (!one.Pending || one.Held) && r.timeouts.now().Sub(one.at) < r.timeouts.lifetime
}

// List returns the machines that send heartbeats, by name. The caller must not change their
// labels.
func (r *Registry) List() []Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expireLocked()
	list := make([]Member, 0, len(r.members))
	for _, one := range r.members {
		if r.listed(one) {
			list = append(list, one.Member)
		}
	}
	slices.SortFunc(list, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// instance returns the instance of the machine that has a name, or "". The machine may be
// silent; a client must not reach another one with the same name.
func (r *Registry) instance(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one := r.members[name]; one != nil && (!one.Pending || one.Held) {
		return one.Instance
	}
	return ""
}

// has reports whether a machine is listed, or keeps its name although it is silent.
func (r *Registry) has(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.members[name] != nil
}

// knows reports whether the list of machines is loaded and up to date.
func (r *Registry) knows() bool { return r.following.Load() && r.nc.IsConnected() }

// mayConnect reports whether a machine that cannot be reached is listed, or the list is not
// known yet.
func (r *Registry) mayConnect(name string) bool {
	select {
	case <-r.ready:
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.listed(r.members[name])
	default:
		return true
	}
}

// expireLocked removes leases that have expired in the bucket.
func (r *Registry) expireLocked() {
	oldest := r.timeouts.now().Add(-r.timeouts.sessionsHold - r.timeouts.lifetime)
	for name, one := range r.members {
		if one.at.Before(oldest) {
			delete(r.members, name)
		}
	}
}

// any reports whether a machine exists that Place could choose, or that may have a session but
// takes no new ones.
func (r *Registry) any(selection []string, may func(name string) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expireLocked()
	for _, one := range r.members {
		if r.listed(one) && one.Matches(selection) && may(one.Name) {
			return true
		}
	}
	return false
}

// Place chooses the machine with the least load among those that may be used and match a
// selection of labels. It returns "" if there is none.
func (r *Registry) Place(selection []string, may func(name string) bool) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expireLocked()
	var best *lease
	least := 0.0
	for _, one := range r.members {
		if !r.listed(one) || one.Load.Draining || !one.Matches(selection) || !may(one.Name) {
			continue
		}
		// Choose among equal machines at random, so that gateways choose different ones.
		load := float64(one.Load.Sessions+len(one.placed))/float64(max(1, one.Load.Capacity)) + rand.Float64()*1e-9
		if best == nil || load < least {
			best, least = one, load
		}
	}
	if best == nil {
		return ""
	}
	best.placed = append(best.placed, r.timeouts.now())
	return best.Name
}

// Bounds of the clients that wait for a machine: for one machine, of one principal if there
// are others, and of an account. Machines that do not answer must not block the clients of
// other machines.
const (
	maxDialing            = 64
	maxDialingOfPrincipal = 96
	maxDialingInAccount   = 128
)

// beginDial counts a client that waits for a machine, or returns the reason to refuse it. The
// caller must call endDial for a counted client. share is that of the principal.
func (r *Registry) beginDial(machine, share string) (busy string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.dialing[machine] >= maxDialing:
		return errBusy
	case share != "" && r.dialingFor[share] >= maxDialingOfPrincipal:
		return errManyWait
	case r.waiting >= maxDialingInAccount:
		return errAccountBusy
	}
	r.dialing[machine]++
	r.dialingFor[share]++
	r.waiting++
	return ""
}

func (r *Registry) endDial(machine, share string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting--
	decrement(r.dialing, machine)
	decrement(r.dialingFor, share)
}

func decrement(counts map[string]int, key string) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

// bucketTimeout bounds one request about a placement.
const bucketTimeout = 2 * time.Second

// errNoBuckets reports that JetStream has not answered yet.
var errNoBuckets = errors.New("JetStream has not answered yet")

// opened returns the buckets.
func (r *Registry) opened() (*buckets, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.buckets == nil {
		return nil, errNoBuckets
	}
	return r.buckets, nil
}

// errOtherMachine reports that a session is recorded for another machine.
var errOtherMachine = errors.New("the session is at another machine")

// Remember records the machine of a session. Sessions do not move.
func (r *Registry) Remember(ctx context.Context, session, machine string) error {
	open, err := r.opened()
	if err != nil || !natstransport.ValidName(session) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bucketTimeout)
	defer cancel()
	_, err = open.placements.Create(ctx, session, []byte(machine))
	if !errors.Is(err, jetstream.ErrKeyExists) {
		return err
	}
	if entry, err := open.placements.Get(ctx, session); err != nil {
		return err
	} else if string(entry.Value()) != machine {
		return errOtherMachine
	}
	_, err = open.placements.Put(ctx, session, []byte(machine)) // extends its lifetime
	return err
}

// Find returns the machine of a session, or "" if the session was not placed.
func (r *Registry) Find(ctx context.Context, session string) (machine string, err error) {
	open, err := r.opened()
	if err != nil || !natstransport.ValidName(session) {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, bucketTimeout)
	defer cancel()
	entry, err := open.placements.Get(ctx, session)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return "", nil
	case err != nil:
		return "", err
	}
	return string(entry.Value()), nil
}

// Drain makes a machine refuse new sessions.
func (r *Registry) Drain(ctx context.Context, name string) error {
	answer, err := r.nc.RequestWithContext(ctx, controlSubject+name, []byte("drain"))
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return natstransport.ErrNoMachine
	case err != nil:
		return err
	case string(answer.Data) != "ok":
		return errors.New("the machine answers: " + string(answer.Data))
	}
	return nil
}

// Forget removes the entry of a machine, which frees its name. A running machine creates it
// again.
func (r *Registry) Forget(ctx context.Context, name string) error {
	open, err := r.opened()
	if err != nil {
		return err
	}
	return open.members.Delete(ctx, name)
}

// Close ends the connections through this Registry. It does not close the NATS connection.
func (r *Registry) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.dialer.Close()
	r.work.Wait()
}
