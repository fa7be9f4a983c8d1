package fleet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"execserver/transport/natstransport"
)

// ErrNameTaken is in the error of Join, and of Membership.Err, if another machine has the
// name.
var ErrNameTaken = errors.New("another machine has this name")

// JoinOptions say how a machine joins. All functions are required, and may be called
// concurrently.
type JoinOptions struct {
	Log       *slog.Logger // nil discards
	Transport natstransport.Options
	Heartbeat time.Duration // default DefaultHeartbeat

	// Serve serves a connection until it ends. It gets Conn.Hello from the gateway.
	Serve func(*natstransport.Conn)
	// Load returns what the machine does.
	Load func() Load
	// Drain makes the machine refuse new sessions.
	Drain func()
}

// Membership is a machine in a fleet.
type Membership struct {
	nc       *nats.Conn
	opts     JoinOptions
	member   Member
	kv       jetstream.KeyValue
	listener *natstransport.Listener
	control  *nats.Subscription
	drained  chan struct{} // has an element if the entry should say so now
	cancel   context.CancelFunc
	done     chan struct{} // closed when the machine has left, or lost its name
	err      error         // valid when done is closed
	work     sync.WaitGroup
	revision uint64 // of the entry; used by the heartbeats alone
}

// Join registers a machine and begins to serve connections to it. Instance, Joined and Load
// of the member are set by Join. If the name is taken, Join waits until an entry that nobody
// keeps alive is gone. ctx bounds the joining.
func Join(ctx context.Context, nc *nats.Conn, member Member, opts JoinOptions) (*Membership, error) {
	if opts.Heartbeat <= 0 {
		opts.Heartbeat = DefaultHeartbeat
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	member.Instance, member.Joined = rand.Text(), time.Now().UTC().Truncate(time.Second)
	m := &Membership{nc: nc, opts: opts, member: member, drained: make(chan struct{}, 1), done: make(chan struct{})}
	if err := m.open(ctx); err != nil {
		return nil, err
	}
	if err := m.claim(ctx); err != nil {
		return nil, err
	}
	opts.Transport.Instance = member.Instance
	var err error
	if m.listener, err = natstransport.Listen(nc, member.Name, &opts.Transport); err != nil {
		return nil, err
	}
	if m.control, err = nc.Subscribe(controlSubject+member.Name, m.obey); err != nil {
		m.listener.Close()
		return nil, err
	}
	running, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.work.Go(m.accept)
	m.work.Go(func() { m.beat(running) })
	return m, nil
}

// attemptTimeout bounds one request to JetStream or to a machine. While a cluster has no
// leader, JetStream does not answer.
const attemptTimeout = time.Second

// open finds the bucket, for which a gateway may not have had the time yet.
func (m *Membership) open(ctx context.Context) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		kv, err := bucket(attempt, m.nc, Bucket)
		cancel()
		if err == nil {
			m.kv = kv
			return nil
		}
		if !sleep(ctx, m.opts.Heartbeat/4) {
			return fmt.Errorf("find the register of machines: %w", err)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// entry returns the entry as it should be now.
func (m *Membership) entry() []byte {
	member := m.member
	member.Load = m.opts.Load()
	text, _ := json.Marshal(member) // cannot fail
	return text
}

// claim makes the entry. An entry that is there already may be what a machine left that
// was killed: it goes within Lifetime, unless it is kept alive.
func (m *Membership) claim(ctx context.Context) error {
	var first uint64
	told := false
	for {
		owner, revision, err := m.create(ctx)
		switch {
		case err != nil:
			if !sleep(ctx, m.opts.Heartbeat/4) {
				return fmt.Errorf("register the machine %s: %w", m.member.Name, err)
			}
			continue
		case owner == nil:
			m.revision = revision
			return nil
		case owner.Instance == m.member.Instance: // of an attempt whose answer did not come
			m.revision = revision
			return nil
		case first != 0 && revision != first:
			return m.taken(owner)
		}
		first = revision
		if !told {
			told = true
			m.opts.Log.Warn("the name is in use; waiting until its machine gives no sign of life", "name", m.member.Name, "host", owner.Host)
		}
		if !sleep(ctx, m.opts.Heartbeat/2) {
			return m.taken(owner)
		}
	}
}

// create makes the entry, or returns the machine that has the name.
func (m *Membership) create(ctx context.Context) (owner *Member, revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	revision, err = m.kv.Create(ctx, m.member.Name, m.entry())
	if errors.Is(err, jetstream.ErrKeyExists) {
		return m.owner(ctx)
	}
	return nil, revision, err
}

// owner reads the entry.
func (m *Membership) owner(ctx context.Context) (*Member, uint64, error) {
	entry, err := m.kv.Get(ctx, m.member.Name)
	if err != nil {
		return nil, 0, err
	}
	owner := new(Member)
	if err := json.Unmarshal(entry.Value(), owner); err != nil {
		return nil, 0, fmt.Errorf("read the entry: %w", err)
	}
	return owner, entry.Revision(), nil
}

func (m *Membership) taken(owner *Member) error {
	return fmt.Errorf("%w: %s is the machine %s since %s; choose another name, or end that one",
		ErrNameTaken, m.member.Name, owner.Host, owner.Joined.Format(time.RFC3339))
}

// beat keeps the entry alive until ctx ends or the name is lost.
func (m *Membership) beat(ctx context.Context) {
	ticker := time.NewTicker(m.opts.Heartbeat)
	defer ticker.Stop()
	defer close(m.done)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-m.drained:
		}
		if err := m.renew(ctx); errors.Is(err, ErrNameTaken) {
			m.err = err
			m.opts.Log.Error("the machine leaves the fleet", "error", err)
			m.listener.Close()
			return
		} else if err != nil && ctx.Err() == nil {
			m.opts.Log.Warn("cannot renew the entry of the machine", "error", err)
		}
	}
}

// renew renews the entry, or makes it again if it is gone.
func (m *Membership) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.opts.Heartbeat)
	defer cancel()
	revision, err := m.kv.Update(ctx, m.member.Name, m.entry(), m.revision)
	if err == nil {
		m.revision = revision
		return nil
	}
	if !errors.Is(err, jetstream.ErrKeyExists) { // the text for a wrong revision
		return err
	}
	owner, revision, err := m.owner(ctx)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		revision, err = m.kv.Create(ctx, m.member.Name, m.entry())
		if err == nil {
			m.revision = revision
		}
		return err
	case err != nil:
		return err
	case owner.Instance != m.member.Instance:
		return m.taken(owner)
	}
	m.revision = revision // an update arrived whose answer did not
	return nil
}

// accept serves connections until the listener is closed.
func (m *Membership) accept() {
	for {
		conn, err := m.listener.Accept()
		if err != nil {
			return
		}
		m.work.Go(func() { m.opts.Serve(conn) })
	}
}

// obey does what a gateway says.
func (m *Membership) obey(msg *nats.Msg) {
	answer := "unknown request"
	if string(msg.Data) == "drain" {
		m.opts.Drain()
		select {
		case m.drained <- struct{}{}:
		default:
		}
		answer = "ok"
	}
	_ = msg.Respond([]byte(answer)) // the gateway reports that there was no answer
}

// Done is closed when the machine has left the fleet. Err says why then.
func (m *Membership) Done() <-chan struct{} { return m.done }

// Err returns why the machine has left: nil after Close. Done must be closed.
func (m *Membership) Err() error { return m.err }

// leaveTimeout bounds how long Close waits for NATS.
const leaveTimeout = time.Second

// Close leaves the fleet, ends the connections and waits for their goroutines. The NATS
// connection stays the caller's.
func (m *Membership) Close() {
	m.cancel()
	<-m.done
	if m.err == nil && m.nc.IsConnected() {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		// Without it, the entry goes when its time is over.
		_ = m.kv.Delete(ctx, m.member.Name, jetstream.LastRevision(m.revision))
	}
	_ = m.control.Unsubscribe() // fails only if the connection to NATS is gone
	m.listener.Close()
	m.work.Wait()
}
