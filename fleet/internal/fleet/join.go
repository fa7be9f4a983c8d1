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

	"execserver/fleet/natstransport"
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
	listener *natstransport.Listener
	control  *nats.Subscription
	drained  chan struct{} // has an element if the entry should say so now
	cancel   context.CancelFunc
	done     chan struct{} // closed when the machine has left, or lost its name
	err      error         // valid when done is closed
	work     sync.WaitGroup
	revision uint64 // of the entry; used by the heartbeats alone

	leaveTimeout time.Duration // for a gateway to remove the entry
}

// Join registers a machine and begins to serve connections to it. Instance, Joined and Load
// of the member are set by Join. If the name is taken, Join waits until an entry that nobody
// keeps alive is gone. It waits for a gateway, too. ctx bounds the joining.
func Join(ctx context.Context, nc *nats.Conn, member Member, opts JoinOptions) (*Membership, error) {
	if opts.Heartbeat <= 0 {
		opts.Heartbeat = DefaultHeartbeat
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	member.Instance, member.Joined = rand.Text(), time.Now().UTC().Truncate(time.Second)
	m := &Membership{nc: nc, opts: opts, member: member, leaveTimeout: defaultLeaveTimeout, drained: make(chan struct{}, 1), done: make(chan struct{})}
	if err := m.member.check(); err != nil {
		return nil, fmt.Errorf("register the machine %s: %w", member.Name, err)
	}
	if err := m.claim(ctx); err != nil {
		return nil, err
	}
	opts.Transport.Instance = member.Instance
	// Before Listen, which waits until the NATS server knows of both: a gateway may drain the
	// machine as soon as it is there.
	var err error
	if m.control, err = nc.Subscribe(controlSubject+member.Name, m.obey); err != nil {
		m.leave()
		return nil, err
	}
	if m.listener, err = natstransport.Listen(nc, member.Name, &opts.Transport); err != nil {
		_ = m.control.Unsubscribe() // fails only if the connection to NATS is gone
		m.leave()
		return nil, err
	}
	running, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.work.Go(m.accept)
	m.work.Go(func() { m.beat(running) })
	return m, nil
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

// errInvalid is in the error of ask if the gateway does not take the entry.
var errInvalid = errors.New("the gateway refuses the entry")

// ask makes a request to a gateway.
func (m *Membership) ask(ctx context.Context, request registerRequest) (*registerAnswer, error) {
	request.Member = m.member
	request.Member.Load = m.opts.Load()
	text, _ := json.Marshal(request) // cannot fail
	ctx, cancel := context.WithTimeout(ctx, 2*attemptTimeout)
	defer cancel()
	reply, err := m.nc.RequestWithContext(ctx, registerSubject+m.member.Name, text)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, errors.New("no gateway is connected")
	}
	if err != nil {
		return nil, fmt.Errorf("ask a gateway: %w", err)
	}
	answer := new(registerAnswer)
	err = json.Unmarshal(reply.Data, answer)
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask a gateway: %w", err)
	case answer.Invalid != "":
		return nil, fmt.Errorf("%w: %s", errInvalid, answer.Invalid)
	case answer.Error != "":
		return nil, errors.New("the gateway answers: " + answer.Error)
	}
	return answer, nil
}

// claim makes the entry. An entry that is there already may be what a machine left that
// was killed: it goes within Lifetime, unless it is kept alive.
func (m *Membership) claim(ctx context.Context) error {
	var first uint64
	told, toldError := false, false
	for {
		answer, err := m.ask(ctx, registerRequest{})
		switch {
		case err != nil:
			if errors.Is(err, errInvalid) || !sleep(ctx, m.opts.Heartbeat/4) {
				return fmt.Errorf("register the machine %s: %w", m.member.Name, err)
			}
			if !toldError {
				toldError = true
				m.opts.Log.Warn("cannot register the machine yet; trying again", "name", m.member.Name, "error", err)
			}
			continue
		case answer.Owner == nil:
			m.revision = answer.Revision
			return nil
		case first != 0 && answer.Revision != first && !answer.Owner.Load.Draining:
			return m.taken(answer.Owner) // one that drains ends by itself
		}
		first = answer.Revision
		if !told {
			told = true
			m.opts.Log.Warn("the name is in use; waiting until its machine has ended", "name", m.member.Name, "host", answer.Owner.Host)
		}
		if !sleep(ctx, m.opts.Heartbeat/2) {
			return m.taken(answer.Owner)
		}
	}
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
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-m.drained:
		}
		err := m.renew(ctx)
		switch {
		case errors.Is(err, ErrNameTaken):
			m.err = err
			m.opts.Log.Error("the machine leaves the fleet", "error", err)
			m.listener.Close()
			return
		case ctx.Err() != nil:
		case err != nil && !failing:
			m.opts.Log.Warn("cannot renew the entry of the machine; trying again", "error", err)
		case err == nil && failing:
			m.opts.Log.Warn("renewed the entry of the machine again")
		}
		failing = err != nil
	}
}

// renew renews the entry, or makes it again if it is gone.
func (m *Membership) renew(ctx context.Context) error {
	answer, err := m.ask(ctx, registerRequest{Revision: m.revision})
	if err != nil {
		return err
	}
	if answer.Owner != nil {
		return m.taken(answer.Owner)
	}
	m.revision = answer.Revision
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

// A machine waits for defaultLeaveTimeout until a gateway has removed its entry, in four attempts
// with leavePause between them.
const (
	defaultLeaveTimeout = time.Second
	leavePause          = 50 * time.Millisecond
)

// leave removes the entry. Without an answer, it goes when its time is over.
func (m *Membership) leave() {
	if !m.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.leaveTimeout)
	defer cancel()
	for {
		// The gateway may have to finish what it was asked last. It answers the first request
		// that comes too soon, and none of those after it.
		attempt, end := context.WithTimeout(ctx, m.leaveTimeout/4)
		_, err := m.ask(attempt, registerRequest{Leave: true})
		end()
		if err == nil || !sleep(ctx, leavePause) {
			return
		}
	}
}

// Close leaves the fleet, ends the connections and waits for their goroutines. The NATS
// connection stays the caller's.
func (m *Membership) Close() {
	m.cancel()
	<-m.done
	if m.err == nil {
		m.leave()
	}
	_ = m.control.Unsubscribe() // fails only if the connection to NATS is gone
	m.listener.Close()
	m.work.Wait()
}
