package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"execserver/internal/rpc"
	"execserver/protocol"
	"execserver/transport"
)

// The pauses between two attempts to connect. maxUsefulPause follows a short connection that
// brought something. There must be a pause, because one request whose answer breaks every
// connection would otherwise make the client connect without end.
const (
	minPause       = 20 * time.Millisecond
	maxPause       = 2 * time.Second
	maxUsefulPause = 50 * time.Millisecond
)

// steadyTime is how long a connection must last to be a good one although it brought
// nothing.
const steadyTime = 5 * time.Second

// recovery is the replacing of a broken connection. It goes on while the new connections
// end soon and bring nothing, as those to a server that closes them after the handshake.
type recovery struct {
	began     time.Time     // when the last good connection ended
	pause     time.Duration // before the next attempt; 0: none
	connected time.Time     // when the connection that ended was made; zero for the first
}

// after records that a connection has ended. useful says that it brought something.
func (r *recovery) after(useful bool) *recovery {
	now := time.Now()
	switch {
	case now.Sub(r.connected) >= steadyTime:
		r.began, r.pause = now, 0
	case useful:
		r.began, r.pause = now, min(r.pause, maxUsefulPause)
	}
	return r
}

// slower makes the next pause longer.
func (r *recovery) slower() { r.pause = min(max(2*r.pause, minPause), maxPause) }

// watch reconnects whenever the connection has ended, until it must not or cannot.
func (m *connManager) watch() {
	var again recovery
	for {
		conn := m.conn // only changed here
		select {
		case <-conn.Context().Done():
		case <-m.closing:
			conn.Close(m.farewell(), ErrClosed)
			<-conn.Context().Done()
		}
		select {
		case <-m.closing:
			m.set(nil, ErrClosed)
			return
		default:
		}
		cause := context.Cause(conn.Context())
		m.user.lost(&InterruptedError{cause})
		m.opts.Log.Info("connection lost", "server", m.name, "cause", cause)
		observing := m.isObserving()
		next, err := m.recover(cause, again.after(m.useful.Load() == conn))
		if err != nil {
			m.set(nil, err)
			m.opts.Log.Warn("connection given up", "server", m.name, "error", err)
			m.user.fail(err)
			m.states.put(State{Kind: Failed, Since: time.Now(), Err: err})
			return
		}
		m.opts.Log.Info("connection recovered", "server", m.name)
		m.set(next, nil)
		again.connected = time.Now()
		if observing && !m.isObserving() {
			next.Close(lost, errObserves)
			continue
		}
		m.states.put(State{Kind: Connected, Since: time.Now()})
		m.user.recovered()
	}
}

// recover reconnects, at once unless r has a pause, and then after growing pauses.
func (m *connManager) recover(cause error, r *recovery) (*rpc.Conn, error) {
	timeout := m.recoveryTime()
	if m.takenOver.Load() {
		return nil, &DisconnectedError{Cause: ErrTakenOver}
	}
	if m.shutdown.Swap(false) {
		if !m.replaceable() {
			return nil, &DisconnectedError{Cause: ErrServerShutdown}
		}
		m.setSession("") // one of the server's successor is as good
	}
	if !m.resumes || timeout < 0 {
		return nil, &DisconnectedError{Cause: cause}
	}
	until := r.began.Add(timeout)
	ctx, cancel := context.WithDeadlineCause(m.ctx, until, &timeoutError{"recovery", timeout})
	defer cancel()
	m.states.put(State{Kind: Recovering, Since: r.began, Until: until, Err: cause})
	var err error
	for {
		if stop := m.rest(ctx, r.pause); stop != nil {
			return nil, &DisconnectedError{Cause: cause, Err: errors.Join(stop, err)}
		}
		var conn *rpc.Conn
		var result *initializeResult
		conn, result, err = m.connect(ctx)
		r.slower()
		switch {
		case err == nil:
			m.setSession(result.SessionID)
			return conn, nil
		case m.sessionID() != "" && errors.Is(err, ErrUnknownSession) && m.replaceable():
			// The server treats the end of a stream as a farewell, which ends a session
			// that holds nothing. Another session is as good.
			m.setSession("")
			r.pause = 0
		case ctx.Err() != nil:
			return nil, &DisconnectedError{Cause: cause, Err: errors.Join(context.Cause(ctx), err)}
		case !retryable(err):
			return nil, &DisconnectedError{Cause: cause, Err: err}
		default:
			m.opts.Log.Debug("connection not recovered yet", "server", m.name, "error", err)
		}
	}
}

// rest waits before an attempt to connect, and returns why there must be none.
func (m *connManager) rest(ctx context.Context, pause time.Duration) error {
	if pause == 0 {
		return nil
	}
	// The clients of a restarted server should not all come at once.
	select {
	case <-time.After(pause/2 + rand.N(pause/2)):
		return nil
	case <-m.closing:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// replaceable reports whether another session is as good as this one.
func (m *connManager) replaceable() bool {
	return !m.inherited && m.lease() == 0 && !m.user.needsSession()
}

// sessionUnknown reports whether a server has no such session any more.
func sessionUnknown(err error) bool {
	var refused *protocol.Error
	return errors.As(err, &refused) && refused.Code == protocol.CodeInvalidRequest &&
		strings.HasPrefix(refused.Message, "unknown session id")
}

// retryable reports whether another attempt to resume may succeed. It may unless the
// server has refused for good.
func retryable(err error) bool {
	var refused *protocol.Error
	if errors.As(err, &refused) {
		return refused.Code == protocol.CodeSessionAttached || refused.Code == protocol.CodeTransportClosed
	}
	var dial *DialError
	return errors.As(err, &dial) && dial.retryable() && !errors.As(err, new(*handshakeError))
}

// farewell is how the manager ends its last connection.
func (m *connManager) farewell() transport.Reason {
	if m.detached.Load() {
		return lost
	}
	return done
}

// recoveryTime returns how long the client tries to replace a connection that breaks now.
func (m *connManager) recoveryTime() time.Duration {
	timeout := m.opts.RecoveryTimeout
	if timeout != RecoverWhileKept {
		return timeout
	}
	kept := m.machine.SessionLifetime
	if kept == nil {
		return DefaultRecoveryTimeout
	}
	return max(kept.Detached, kept.Silent, m.lease()) + noticeTime
}

// noticeTime is how much later than the client the server may notice a broken connection.
const noticeTime = time.Minute

// State is the state of an Environment's connection, for Options.OnState.
type State struct {
	Kind  StateKind
	Since time.Time // when the state began
	// Until is when Recovering ends at the latest.
	Until time.Time
	// Err is why the connection broke, for Recovering, or why the Environment failed.
	Err error
}

// StateKind is the kind of a State.
type StateKind byte

// The kinds of State. An Environment begins with Connected, which it does not report.
const (
	Connected  StateKind = iota + 1 // calls reach the server
	Recovering                      // the connection is broken, and the client tries to replace it
	Failed                          // the connection is lost for good
)

// String returns "connected", "recovering" or "failed".
func (k StateKind) String() string {
	switch k {
	case Connected:
		return "connected"
	case Recovering:
		return "recovering"
	case Failed:
		return "failed"
	}
	return fmt.Sprintf("StateKind(%d)", byte(k))
}

// maxStates bounds the states that wait for a callback that blocks.
const maxStates = 64

// states passes the states of a connection to a callback, in order, without blocking the
// caller.
type states struct {
	report func(State) // may be nil

	mu        sync.Mutex
	waiting   []State
	reporting bool
	over      bool // the program has closed the Environment
}

// put reports a state soon.
func (s *states) put(state State) {
	if s.report == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	if s.waiting = append(s.waiting, state); len(s.waiting) > maxStates {
		s.waiting = s.waiting[2:] // a break, and its end
	}
	if !s.reporting {
		s.reporting = true
		go s.run() // ends when it has reported everything, and the callback has returned
	}
}

func (s *states) run() {
	for {
		s.mu.Lock()
		if len(s.waiting) == 0 {
			s.reporting = false
			s.mu.Unlock()
			return
		}
		next := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.mu.Unlock()
		s.report(next)
	}
}

// end drops the states that were not reported.
func (s *states) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting, s.over = nil, true
}
