package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"execserver/internal/rpc"
	"execserver/protocol"
)

// Between two attempts to connect. maxUsefulPause is for connections that end soon, but
// bring something: a request whose answer never comes through may break one after the
// other.
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
func (l *link) watch() {
	var again recovery
	for {
		conn := l.conn // only changed here
		select {
		case <-conn.Context().Done():
		case <-l.closing:
			conn.Close(l.farewell(), ErrClosed)
			<-conn.Context().Done()
		}
		select {
		case <-l.closing:
			l.set(nil, ErrClosed)
			return
		default:
		}
		cause := context.Cause(conn.Context())
		l.streams.fail(&DisconnectedError{Cause: cause})
		l.env.opts.Log.Info("connection lost", "server", l.name, "cause", cause)
		observing := l.isObserving()
		next, err := l.recover(cause, again.after(l.useful.Load() == conn))
		if err != nil {
			l.set(nil, err)
			l.env.opts.Log.Warn("connection given up", "server", l.name, "error", err)
			l.env.fail(err)
			l.env.states.put(State{Kind: Failed, Since: time.Now(), Err: err})
			return
		}
		l.env.opts.Log.Info("connection recovered", "server", l.name)
		l.set(next, nil)
		again.connected = time.Now()
		if observing && !l.isObserving() {
			next.Close(lost, errObserves)
			continue
		}
		l.env.states.put(State{Kind: Connected, Since: time.Now()})
		for _, p := range l.env.live() {
			p.ackAgain()
			p.fill()
			p.resend()
		}
	}
}

// recover reconnects, at once unless r has a pause, and then after growing pauses.
func (l *link) recover(cause error, r *recovery) (*rpc.Conn, error) {
	timeout := l.recoveryTime()
	if l.takenOver.Load() {
		return nil, &DisconnectedError{Cause: ErrTakenOver}
	}
	if l.shutdown.Swap(false) {
		if !l.replaceable() {
			return nil, &DisconnectedError{Cause: ErrServerShutdown}
		}
		l.setSession("") // one of the server's successor is as good
	}
	if !l.resumes || timeout < 0 {
		return nil, &DisconnectedError{Cause: cause}
	}
	until := r.began.Add(timeout)
	ctx, cancel := context.WithDeadlineCause(l.env.ctx, until, &timeoutError{"recovery", timeout})
	defer cancel()
	l.env.states.put(State{Kind: Recovering, Since: r.began, Until: until, Err: cause})
	var err error
	for {
		if stop := l.rest(ctx, r.pause); stop != nil {
			return nil, &DisconnectedError{Cause: cause, Err: errors.Join(stop, err)}
		}
		var conn *rpc.Conn
		var result *initializeResult
		conn, result, err = l.connect(ctx)
		r.slower()
		switch {
		case err == nil:
			l.setSession(result.SessionID)
			return conn, nil
		case l.sessionID() != "" && errors.Is(err, ErrUnknownSession) && l.replaceable():
			// The server treats the end of a stream as a farewell, which ends a session
			// that holds nothing. Another session is as good.
			l.setSession("")
			r.pause = 0
		case ctx.Err() != nil:
			return nil, &DisconnectedError{Cause: cause, Err: errors.Join(context.Cause(ctx), err)}
		case !retryable(err):
			return nil, &DisconnectedError{Cause: cause, Err: err}
		default:
			l.env.opts.Log.Debug("connection not recovered yet", "server", l.name, "error", err)
		}
	}
}

// rest waits before an attempt to connect, and returns why there must be none.
func (l *link) rest(ctx context.Context, pause time.Duration) error {
	if pause == 0 {
		return nil
	}
	// The clients of a restarted server should not all come at once.
	select {
	case <-time.After(pause/2 + rand.N(pause/2)):
		return nil
	case <-l.closing:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// replaceable reports whether another session is as good as this one.
func (l *link) replaceable() bool {
	return !l.env.inherited && l.lease() == 0 && !slices.ContainsFunc(l.env.live(), (*Process).mayExist)
}

// mayExist reports whether the server may have the process.
func (p *Process) mayExist() bool { return p.asked.Load() }

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
