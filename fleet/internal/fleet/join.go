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

// JoinOptions say how a machine joins. All functions are required, and may be called
// concurrently.
type JoinOptions struct {
	Log       *slog.Logger // nil discards
	Transport natstransport.Options
	Heartbeat time.Duration // default DefaultHeartbeat

	// Replaces is the Instance of the machine that had the name on this host, and has certainly
	// ended; "" for none. Its sessions do not keep the name.
	Replaces string
	// Named, if not nil, is called with the Instance before the machine can have sessions.
	Named func(instance string)

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
	changed  chan struct{} // has an element if the entry should say something new now
	conns    atomic.Int64  // connections of clients
	busy     atomic.Bool   // the entry says that the machine has sessions, or connections
	nameless atomic.Bool   // another machine has the name
	cancel   context.CancelFunc
	done     chan struct{} // closed when the heartbeats have ended
	work     sync.WaitGroup
	revision uint64 // of the entry; used by the heartbeats alone, as the next one
	renewal  string // of the request that was not answered; "" for none
	deaf     bool   // it could not listen

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
	// Before Listen, which waits until the NATS server knows of both: a gateway may drain the
	// machine as soon as it is there.
	var err error
	if m.control, err = nc.Subscribe(controlSubject+member.Name, m.obey); err != nil {
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

// claim makes the entry. An entry that is there already may be what a machine left that
// was killed: it yields when its time is over, unless it is kept alive.
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
			return m.taken(answer) // one that drains ends by itself
		}
		first = answer.Revision
		if !told {
			told = true
			m.opts.Log.Warn("waiting until the machine that has the name has ended, or has been silent for long enough",
				"error", m.taken(answer), "silent_s", answer.Silent)
		}
		if !sleep(ctx, m.opts.Heartbeat/2) {
			return m.taken(answer)
		}
	}
}

// taken says which machine has the name, and what to do.
func (m *Membership) taken(answer *registerAnswer) error {
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

// changePause is the time before a change is told, longer than registerPause: a gateway does not
// look at two requests in a row.
const changePause = 2 * registerPause

// beat keeps the entry alive until ctx ends, or tries to get the name again if it is lost. It
// does so at once when the connection to NATS is back.
func (m *Membership) beat(ctx context.Context) {
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
			if !open { // so is nothing else of the connection
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
	if m.nameless.Load() {
		request.Revision = 0
	}
	answer, err := m.ask(ctx, request)
	if err != nil {
		return err
	}
	m.revision = answer.Revision
	had := !m.nameless.Swap(answer.Owner != nil)
	if answer.Twin {
		err = m.distinguish()
	} else if m.deaf {
		err = m.listen()
	}
	if err != nil {
		return err
	}
	m.listener.RequireInstance(answer.Owner != nil)
	switch {
	case answer.Owner != nil && had:
		m.opts.Log.Error("the machine has lost its name; its sessions continue, and it tries to get the name again", "error", m.taken(answer))
	case answer.Owner == nil && !had:
		m.opts.Log.Warn("the machine has its name again", "name", m.member.Name)
	}
	return nil
}

// distinguish makes a machine another instance than its twin, which gets the same frames. Its
// connections end, and its sessions do not.
func (m *Membership) distinguish() error {
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
	m.deaf = err != nil
	if err == nil {
		m.listener = listener
		m.work.Go(func() { m.accept(listener) })
	}
	return err
}

// change makes the entry say what is new, soon.
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

// obey does what a gateway says to the machine that has the name.
func (m *Membership) obey(msg *nats.Msg) {
	if m.nameless.Load() {
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
	m.leave()
	_ = m.control.Unsubscribe() // fails only if the connection to NATS is gone
	m.listener.Close()
	m.work.Wait()
}
