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

// Roster is what a gateway knows about the machines of one account. Its methods may be
// called concurrently.
type Roster struct {
	log       *slog.Logger
	nc        *nats.Conn
	replicas  int
	waits     waits
	dialer    *natstransport.Dialer
	cancel    context.CancelFunc
	ready     chan struct{} // closed when the machines are known
	once      sync.Once
	following atomic.Bool
	work      sync.WaitGroup

	mu            sync.Mutex
	members       map[string]*seen // all leases
	round         int              // counts how often the bucket was opened
	fresh         time.Time        // until when no claim is granted: the bucket was empty
	isNew         func(name string) bool
	registering   map[string]bool // machines that may not ask now, and whether one was told so
	registrations int             // in progress
	dialing       map[string]int  // connections that wait for their machine
	dialingFor    map[string]int  // the same by principal
	waiting       int             // the sum of dialing
	buckets       *buckets        // nil until they are there, and what is in them is known
	closed        bool
}

// seen is a lease, and when it was last renewed as far as this gateway knows.
type seen struct {
	Member
	revision uint64
	round    int
	at       time.Time   // when this revision came
	silent   bool        // it was old when the bucket was opened
	placed   []time.Time // when sessions were placed that its load may not have yet
}

// waits are how long a gateway waits for machines. Tests have others.
type waits struct {
	now      func() time.Time
	lifetime time.Duration // of an entry without a heartbeat
	hold     time.Duration // the same of a machine with sessions
	fresh    time.Duration // before a name is granted in an empty list
	dial     time.Duration // for a client that waits for its machine, in attempts
	attempt  func(context.Context) (context.Context, context.CancelFunc)
}

// usualWaits are those of all gateways.
var usualWaits = waits{
	now: time.Now, lifetime: Lifetime, hold: SessionsHold, fresh: Lifetime, dial: dialTimeout,
	attempt: func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, attemptTimeout)
	},
}

// unseen returns which of the sessions placed a heartbeat that came now may not have: it may
// have been on its way before them. A session that was placed counts as one for some time even if
// no heartbeat shows it: it may not have come about.
func (s *seen) unseen(next *seen, placedFor time.Duration) []time.Time {
	if s.Instance != next.Instance {
		return nil
	}
	shown := max(0, next.Load.Sessions-s.Load.Sessions)
	rest := s.placed[min(shown, len(s.placed)):]
	return slices.DeleteFunc(slices.Clone(rest), func(placed time.Time) bool { return next.at.Sub(placed) > placedFor })
}

// NewRoster follows the machines of an account, to which nc is connected. replicas is how
// many NATS servers keep the bucket.
func NewRoster(nc *nats.Conn, replicas int, log *slog.Logger, opts *natstransport.Options) (*Roster, error) {
	return newRoster(nc, replicas, log, opts, usualWaits)
}

func newRoster(nc *nats.Conn, replicas int, log *slog.Logger, opts *natstransport.Options, w waits) (*Roster, error) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Roster{
		log: log, nc: nc, replicas: replicas, waits: w, dialer: natstransport.NewDialer(nc, opts), cancel: cancel,
		ready: make(chan struct{}), members: make(map[string]*seen),
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

// GrantNew makes names for which isNew returns true be granted at once, even if the list is new
// and empty: no machine can have had one before.
func (r *Roster) GrantNew(isNew func(name string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isNew = isNew
}

// retryPause is the time between two attempts to follow the bucket.
const retryPause = 500 * time.Millisecond

// follow follows the bucket until ctx ends.
func (r *Roster) follow(ctx context.Context) {
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
func (r *Roster) watch(ctx context.Context) error {
	r.begins()
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	open, err := openBuckets(opening, r.nc, r.replicas, r.waits.hold+r.waits.lifetime)
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
				r.begun(open)
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

// begins says that the bucket is about to be opened. Nobody can register until its entries
// are known.
func (r *Roster) begins() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round++
	r.buckets = nil
}

// begun takes the end of the entries that were in the bucket. An empty bucket may be what is
// left of one that was lost. Machines with sessions have lost their leases with it, and claim
// their names again: nobody else gets one before they had the time.
func (r *Roster) begun(open *buckets) {
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
		r.fresh = r.waits.now().Add(r.waits.fresh)
	}
}

// update takes an entry of the bucket. initial says that it was there before.
func (r *Roster) update(entry jetstream.KeyValueEntry, initial bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := &seen{revision: entry.Revision(), round: r.round, at: r.waits.now()}
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
		one.placed = before.unseen(one, r.waits.dial)
	}
	if initial { // only the list depends on this comparison of clocks, for a moment
		one.silent = time.Since(entry.Created()) > r.waits.lifetime
	}
	r.members[one.Name] = one
}

// listed reports whether a machine gives signs of life, and has its name or has had it.
func (r *Roster) listed(one *seen) bool {
	return one != nil && !one.silent && (!one.Pending || one.Held) && r.waits.now().Sub(one.at) < r.waits.lifetime
}

// List returns the machines that give signs of life, by name. The caller must not change
// their labels.
func (r *Roster) List() []Member {
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

// instance returns the instance of the machine that has a name, or "". It may be silent: no
// other one that listens there is meant.
func (r *Roster) instance(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one := r.members[name]; one != nil && (!one.Pending || one.Held) {
		return one.Instance
	}
	return ""
}

// has reports whether a machine is listed, or keeps its name although it is silent.
func (r *Roster) has(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.members[name] != nil
}

// knows reports whether the list of machines is known, and followed.
func (r *Roster) knows() bool { return r.following.Load() && r.nc.IsConnected() }

// mayCome reports whether a machine that cannot be reached is listed, or the list is not
// known yet.
func (r *Roster) mayCome(name string) bool {
	select {
	case <-r.ready:
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.listed(r.members[name])
	default:
		return true
	}
}

// expireLocked forgets leases that the bucket does not have any more.
func (r *Roster) expireLocked() {
	oldest := r.waits.now().Add(-r.waits.hold - r.waits.lifetime)
	for name, one := range r.members {
		if one.at.Before(oldest) {
			delete(r.members, name)
		}
	}
}

// any reports whether there is a machine that Place could choose, or that may have a session
// although it takes no new ones.
func (r *Roster) any(selection []string, may func(name string) bool) bool {
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
func (r *Roster) Place(selection []string, may func(name string) bool) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expireLocked()
	var best *seen
	least := 0.0
	for _, one := range r.members {
		if !r.listed(one) || one.Load.Draining || !one.Matches(selection) || !may(one.Name) {
			continue
		}
		// Equal machines are taken by chance, so that gateways do not all take the same.
		load := float64(one.Load.Sessions+len(one.placed))/float64(max(1, one.Load.Capacity)) + rand.Float64()*1e-9
		if best == nil || load < least {
			best, least = one, load
		}
	}
	if best == nil {
		return ""
	}
	best.placed = append(best.placed, r.waits.now())
	return best.Name
}

// Bounds of the clients that wait for a machine: of one machine, of one principal where there
// are others, and of an account. Machines that do not answer must not keep the clients of
// others out.
const (
	maxDialing            = 64
	maxDialingOfPrincipal = 96
	maxDialingInAccount   = 128
)

// beginDial counts a client that waits for a machine, or returns why it must not. The caller
// must call endDial then. share is that of the principal.
func (r *Roster) beginDial(machine, share string) (busy string) {
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

func (r *Roster) endDial(machine, share string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting--
	lessOne(r.dialing, machine)
	lessOne(r.dialingFor, share)
}

func lessOne(counts map[string]int, key string) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

// bucketTimeout bounds one request about a placement.
const bucketTimeout = 2 * time.Second

// errNoBuckets says that JetStream has not answered yet.
var errNoBuckets = errors.New("JetStream has not answered yet")

// opened returns the buckets.
func (r *Roster) opened() (*buckets, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.buckets == nil {
		return nil, errNoBuckets
	}
	return r.buckets, nil
}

// errElsewhere says that a machine claims a session of another one.
var errElsewhere = errors.New("the session is at another machine")

// Remember records at which machine a session is. A session does not move.
func (r *Roster) Remember(ctx context.Context, session, machine string) error {
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
		return errElsewhere
	}
	_, err = open.placements.Put(ctx, session, []byte(machine)) // it stays longer
	return err
}

// Find returns at which machine a session is, or "" if it was not placed. An error means
// that nobody knows now.
func (r *Roster) Find(ctx context.Context, session string) (machine string, err error) {
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
func (r *Roster) Drain(ctx context.Context, name string) error {
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

// Forget removes the entry of a machine, so that its name is free. A machine that is alive
// makes it again.
func (r *Roster) Forget(ctx context.Context, name string) error {
	open, err := r.opened()
	if err != nil {
		return err
	}
	return open.members.Delete(ctx, name)
}

// Close ends the connections through this Roster. The NATS connection stays the caller's.
func (r *Roster) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.dialer.Close()
	r.work.Wait()
}
