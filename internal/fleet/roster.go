package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"execserver/transport/natstransport"
)

// Roster is what a gateway knows about the machines of one account. Its methods may be
// called concurrently.
type Roster struct {
	log      *slog.Logger
	nc       *nats.Conn
	replicas int
	dialer   *natstransport.Dialer
	cancel   context.CancelFunc
	ready    chan struct{} // closed when the machines are known
	once     sync.Once
	work     sync.WaitGroup

	mu         sync.Mutex
	members    map[string]*seen
	placements jetstream.KeyValue // nil until the buckets are there
}

// seen is a member, and when its last heartbeat came.
type seen struct {
	Member
	at     time.Time
	placed int // sessions placed since
}

// NewRoster follows the machines of an account, to which nc is connected. replicas is how
// many NATS servers keep the bucket.
func NewRoster(nc *nats.Conn, replicas int, log *slog.Logger, opts *natstransport.Options) (*Roster, error) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Roster{
		log: log, nc: nc, replicas: replicas, dialer: natstransport.NewDialer(nc, opts), cancel: cancel,
		ready: make(chan struct{}), members: make(map[string]*seen),
	}
	r.work.Go(func() { r.follow(ctx) })
	return r, nil
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
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	members, placements, err := createBuckets(opening, r.nc, r.replicas)
	if err != nil {
		return err
	}
	watcher, err := members.WatchAll(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = watcher.Stop() }() // it has ended, or the connection has
	r.mu.Lock()
	r.placements = placements
	r.mu.Unlock()
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
				r.once.Do(func() { close(r.ready) })
				continue
			}
			r.update(entry)
		case <-check.C:
			// A bucket in the memory of servers that were all started again is gone.
			checking, cancel := context.WithTimeout(ctx, openTimeout)
			_, err := bucket(checking, r.nc, Bucket)
			cancel()
			if errors.Is(err, jetstream.ErrBucketNotFound) {
				return err
			}
		}
	}
}

// update takes an entry of the bucket.
func (r *Roster) update(entry jetstream.KeyValueEntry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if entry.Operation() != jetstream.KeyValuePut {
		delete(r.members, entry.Key())
		return
	}
	one := &seen{at: time.Now()}
	if err := json.Unmarshal(entry.Value(), &one.Member); err != nil || one.Name != entry.Key() {
		delete(r.members, entry.Key()) // its permissions let a machine write what it likes there
		return
	}
	r.members[one.Name] = one
}

// List returns the machines that give signs of life, by name. The caller must not change
// their labels.
func (r *Roster) List() []Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expireLocked()
	list := make([]Member, 0, len(r.members))
	for _, one := range r.members {
		list = append(list, one.Member)
	}
	slices.SortFunc(list, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// instance returns the instance of a machine that List has, or "".
func (r *Roster) instance(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one := r.members[name]; one != nil && time.Since(one.at) < Lifetime {
		return one.Instance
	}
	return ""
}

// mayCome reports whether a machine that cannot be reached is listed, or the list is not
// known yet.
func (r *Roster) mayCome(name string) bool {
	select {
	case <-r.ready:
		return r.instance(name) != ""
	default:
		return true
	}
}

// expireLocked forgets machines without heartbeats.
func (r *Roster) expireLocked() {
	oldest := time.Now().Add(-Lifetime)
	for name, one := range r.members {
		if one.at.Before(oldest) {
			delete(r.members, name)
		}
	}
}

// any reports whether there is a machine that Place could choose, or that may have a session
// although it takes no new ones.
func (r *Roster) any(selection []string, may func(name string) bool) bool {
	return slices.ContainsFunc(r.List(), func(m Member) bool { return m.Matches(selection) && may(m.Name) })
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
		if one.Load.Draining || !one.Matches(selection) || !may(one.Name) {
			continue
		}
		// Equal machines are taken by chance, so that gateways do not all take the same.
		load := float64(one.Load.Sessions+one.placed)/float64(max(1, one.Load.Capacity)) + rand.Float64()*1e-9
		if best == nil || load < least {
			best, least = one, load
		}
	}
	if best == nil {
		return ""
	}
	best.placed++
	return best.Name
}

// bucketTimeout bounds one request about a placement.
const bucketTimeout = 2 * time.Second

// Remember records at which machine a session is.
func (r *Roster) Remember(session, machine string) {
	r.mu.Lock()
	placements := r.placements
	r.mu.Unlock()
	if placements == nil || !natstransport.ValidName(session) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), bucketTimeout)
	defer cancel()
	if _, err := placements.Put(ctx, session, []byte(machine)); err != nil {
		r.log.Warn("cannot record where a session is; it cannot be resumed through another connection to any machine", "error", err)
	}
}

// Find returns at which machine a session is, or "".
func (r *Roster) Find(ctx context.Context, session string) string {
	r.mu.Lock()
	placements := r.placements
	r.mu.Unlock()
	if placements == nil || !natstransport.ValidName(session) {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, bucketTimeout)
	defer cancel()
	entry, err := placements.Get(ctx, session)
	if err != nil {
		return ""
	}
	return string(entry.Value())
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

// Forget removes the entry of a machine, which makes it again if it is alive.
func (r *Roster) Forget(ctx context.Context, name string) error {
	kv, err := bucket(ctx, r.nc, Bucket)
	if err != nil {
		return err
	}
	return kv.Delete(ctx, name)
}

// Close ends the connections through this Roster. The NATS connection stays the caller's.
func (r *Roster) Close() {
	r.cancel()
	r.dialer.Close()
	r.work.Wait()
}
