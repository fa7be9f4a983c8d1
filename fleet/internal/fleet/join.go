package fleet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/fleet/natstransport"
)

// ErrNameTaken is in the error of Join if another machine has the name.
var ErrNameTaken = errors.New("another machine has this name")

// JoinOptions are the options of Join. All functions are required unless documented
// otherwise, and may be called concurrently.
type JoinOptions struct {
	Log       *slog.Logger // nil discards
	Transport natstransport.Options
	Heartbeat time.Duration // default DefaultHeartbeat

	// Replaces is the Instance of the machine that had the name on this host and is known to
	// have ended; "" for none. Its sessions do not keep the name.
	Replaces string
	// Named, if not nil, is called with the Instance before the machine can have sessions.
	Named func(instance string)

	// Serve serves a connection until it ends. It gets Conn.Hello from the gateway.
	Serve func(*natstransport.Conn)
	// Load returns the load of the machine.
	Load func() Load
	// Drain makes the machine refuse new sessions.
	Drain func()
}

// Membership is a machine in a fleet.
type Membership struct {
	nc           *nats.Conn
	opts         JoinOptions
	member       Member
	listener     *natstransport.Listener
	control      *nats.Subscription
	changed      chan struct{} // has an element if the entry should be renewed now
	conns        atomic.Int64  // connections of clients
	busy         atomic.Bool   // the entry says that the machine has sessions, or connections
	nameLost     atomic.Bool   // another machine has the name
	cancel       context.CancelFunc
	done         chan struct{} // closed when the heartbeats have ended
	work         sync.WaitGroup
	revision     uint64 // of the entry; used by the heartbeats alone, as the next one
	renewal      string // of the request that was not answered; "" for none
	notListening bool   // it could not listen

	leaveTimeout time.Duration // for a gateway to remove the entry
}

// Join registers a machine and begins to serve connections to it. Instance, Joined and Load
// of the member are set by Join. Join waits for a gateway, and for a name whose machine is
// silent or drains; if its machine is alive, the error is ErrNameTaken. ctx bounds the joining.
//
// A machine that loses its name afterwards keeps its connections and its sessions, and takes
// no new connections until it has the name again.
func Join(ctx context.Context, nc *nats.Conn, member Member, opts JoinOptions) (*Membership, error) {
	if opts.Heartbeat <= 0 {
		opts.Heartbeat = DefaultHeartbeat
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	member.Instance, member.Joined = rand.Text(), time.Now().UTC().Truncate(time.Second)
	m := &Membership{nc: nc, opts: opts, member: member, leaveTimeout: defaultLeaveTimeout, changed: make(chan struct{}, 1), done: make(chan struct{})}
	if err := m.member.check(); err != nil {
		return nil, fmt.Errorf("register the machine %s: %w", member.Name, err)
	}
	if err := m.claim(ctx); err != nil {
		return nil, err
	}
	if opts.Named != nil {
		opts.Named(member.Instance)
	}
	m.opts.Transport.Instance = member.Instance
	// Before Listen, which waits until the NATS server has processed both subscriptions: a
	// gateway may drain the machine as soon as it is listed.
	var err error
	if m.control, err = nc.Subscribe(controlSubject+member.Name, m.handleControl); err != nil {
		m.leave()
		return nil, err
	}
	if err := m.listen(); err != nil {
		_ = m.control.Unsubscribe() // fails only if the connection to NATS is gone
		m.leave()
		return nil, err
	}
	running, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.work.Go(func() { m.heartbeats(running) })
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
	if m.renewal == "" {
		m.renewal = rand.Text()
	}
	request.Member, request.Replaces = m.member, m.opts.Replaces
	request.Member.Renewal = m.renewal
	request.Member.Load = m.opts.Load()
	request.Member.Load.Connections = int(m.conns.Load())
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
	m.renewal = ""
	return answer, nil
}

// claim creates the entry. An existing entry may be that of a machine that was killed: it
// yields when it expires, unless it is renewed.
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
			return m.takenError(answer) // one that drains ends by itself
		}
		first = answer.Revision
		if !told {
			told = true
			m.opts.Log.Warn("waiting until the machine that has the name has ended, or has been silent for long enough",
				"error", m.takenError(answer), "silent_s", answer.Silent)
		}
		if !sleep(ctx, m.opts.Heartbeat/2) {
			return m.takenError(answer)
		}
	}
}

// takenError describes the machine that has the name, and what to do.
func (m *Membership) takenError(answer *registerAnswer) error {
	owner, name := answer.Owner, m.member.Name
	sessions := "without sessions"
	switch n := owner.Load.Sessions; {
	case n == 1:
		sessions = "with 1 session"
	case n > 1:
		sessions = fmt.Sprintf("with %d sessions", n)
	}
	return fmt.Errorf("%w: %s is the machine %s since %s, %s; choose another name with --name, or end that one; if it is gone for good, run: exec-fleet forget %s",
		ErrNameTaken, name, owner.Host, owner.Joined.Format(time.RFC3339), sessions, name)
}

// changePause is the delay before a change is reported. It exceeds registerPause, within which
// a gateway ignores a second request.
const changePause = 2 * registerPause

// heartbeats keeps the entry alive until ctx ends, or tries to get the name again if it is lost. It
// does so at once when the connection to NATS is back.
func (m *Membership) heartbeats(ctx context.Context) {
	ticker := time.NewTicker(m.opts.Heartbeat)
	defer ticker.Stop()
	connected := m.nc.StatusChanged(nats.CONNECTED)
	defer m.nc.RemoveStatusListener(connected)
	defer close(m.done)
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-m.changed:
			if !sleep(ctx, changePause) {
				return
			}
		case _, open := <-connected:
			if !open { // the connection is closed
				connected = nil
			}
		}
		err := m.renew(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil && !failing:
			m.opts.Log.Warn("cannot renew the entry of the machine; trying again", "error", err)
		case err == nil && failing:
			m.opts.Log.Warn("renewed the entry of the machine again")
		}
		failing = err != nil
	}
}

// renew renews the entry, or makes it again if it is gone. A machine that has lost its name
// ends nothing: its connections and sessions stay.
func (m *Membership) renew(ctx context.Context) error {
	m.busy.Store(m.conns.Load() > 0) // before the request, which asks again
	request := registerRequest{Revision: m.revision}
	if m.nameLost.Load() {
		request.Revision = 0
	}
	answer, err := m.ask(ctx, request)
	if err != nil {
		return err
	}
	m.revision = answer.Revision
	had := !m.nameLost.Swap(answer.Owner != nil)
	if answer.Twin {
		err = m.newInstance()
	} else if m.notListening {
		err = m.listen()
	}
	if err != nil {
		return err
	}
	m.listener.RequireInstance(answer.Owner != nil)
	switch {
	case answer.Owner != nil && had:
		m.opts.Log.Error("the machine has lost its name; its sessions continue, and it tries to get the name again", "error", m.takenError(answer))
	case answer.Owner == nil && !had:
		m.opts.Log.Warn("the machine has its name again", "name", m.member.Name)
	}
	return nil
}

// newInstance gives a machine a new instance, after a copy of it with the same instance has
// appeared. Its connections end, but its sessions continue.
func (m *Membership) newInstance() error {
	m.listener.Close()
	m.member.Instance = rand.Text()
	m.opts.Transport.Instance = m.member.Instance
	if m.opts.Named != nil {
		m.opts.Named(m.member.Instance)
	}
	return m.listen()
}

// listen begins to accept connections.
func (m *Membership) listen() error {
	listener, err := natstransport.Listen(m.nc, m.member.Name, &m.opts.Transport)
	m.notListening = err != nil
	if err == nil {
		m.listener = listener
		m.work.Go(func() { m.accept(listener) })
	}
	return err
}

// change makes the entry be renewed soon.
func (m *Membership) change() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// accept serves the connections of a listener until it is closed.
func (m *Membership) accept(listener *natstransport.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		if m.conns.Add(1) == 1 && !m.busy.Load() {
			m.change() // with a session that begins now, the machine keeps its name for longer
		}
		m.work.Go(func() {
			defer m.conns.Add(-1)
			m.opts.Serve(conn)
		})
	}
}

// handleControl handles a request of a gateway to the machine that has the name.
func (m *Membership) handleControl(msg *nats.Msg) {
	if m.nameLost.Load() {
		return
	}
	answer := "unknown request"
	if string(msg.Data) == "drain" {
		m.opts.Drain()
		m.change()
		answer = "ok"
	}
	_ = msg.Respond([]byte(answer)) // the gateway reports that there was no answer
}

// A machine waits for defaultLeaveTimeout until a gateway has removed its entry, in four attempts
// with leavePause between them.
const (
	defaultLeaveTimeout = time.Second
	leavePause          = 50 * time.Millisecond
)

// leave removes the entry. Without an answer, the entry expires.
func (m *Membership) leave() {
	if !m.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.leaveTimeout)
	defer cancel()
	for {
		// The gateway may still be handling the last request. It answers the first request that
		// comes too soon, and ignores the others.
		attempt, end := context.WithTimeout(ctx, m.leaveTimeout/4)
		_, err := m.ask(attempt, registerRequest{Leave: true})
		end()
		if err == nil || !sleep(ctx, leavePause) {
			return
		}
	}
}

// Close leaves the fleet, ends the connections and waits for their goroutines. It does not
// close the NATS connection.
func (m *Membership) Close() {
	m.cancel()
	<-m.done
	m.leave()
	_ = m.control.Unsubscribe() // fails only if the connection to NATS is gone
	m.listener.Close()
	m.work.Wait()
}
