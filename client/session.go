package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"execserver/internal/rpc"
	"execserver/protocol"
	"execserver/transport"
)

// Session returns the id of the session at the server, or "" with Options.NoSession.
// Another program resumes the session with Options.Session, or observes it with
// Options.Observe. Whoever has the id and the same credentials can do so: keep it as secret
// as they are. It may change when the connection breaks while the session holds nothing.
func (e *Environment) Session() string { return e.link.sessionID() }

// Observing reports whether the Environment observes a session that it does not own, or has
// none.
func (e *Environment) Observing() bool { return e.link.isObserving() }

// TakeOver makes an observer the owner of its session (PROTOCOL.md, "Observing"). The
// previous owner's Environment fails with ErrTakenOver. Readers continue; what the previous
// owner had not acknowledged is the new one's to acknowledge. An Environment that owns its
// session does nothing and returns nil.
//
// When several programs take a session over at the same time, each of them gets it in its
// turn, and the last one owns it. The others fail with ErrTakenOver, which TakeOver may
// already return.
func (e *Environment) TakeOver(ctx context.Context) error {
	l := e.link
	if err := l.permit(protocol.MethodTakeOver); err != nil {
		return err
	}
	for l.isObserving() {
		conn, _, err := l.current(ctx)
		if err != nil {
			return err
		}
		_, err = conn.Call(ctx, protocol.MethodTakeOver, nil)
		err = l.failed(ctx, conn, protocol.MethodTakeOver, err)
		switch {
		case errors.As(err, new(*brokenError)):
			continue // as an observer again, unless another program has the session now
		case err != nil:
			return err
		}
		l.own(conn)
		l.learnLease(ctx, conn)
	}
	for _, p := range e.live() {
		p.ackAgain()
		p.fill()
	}
	return nil
}

// Detach leaves the session at the server with its processes, and closes the Environment as
// far as this program is concerned, like Close: calls and readers fail with ErrClosed. The
// server keeps a session that holds anything for a while (PROTOCOL.md, "Sessions"), and
// another program can resume it with Options.Session meanwhile.
//
// The error is an *UnsupportedError if the session would end with the connection, as that
// of Launch and of New does, and ErrClosed if the Environment was closed before. ctx bounds
// the attempt to let the server know what this program has read.
func (e *Environment) Detach(ctx context.Context) error {
	if !e.link.resumes {
		return &UnsupportedError{"detach", "a session that outlives its connection"}
	}
	err := ErrClosed
	e.once.Do(func() {
		err = nil
		e.states.end()
		for _, p := range e.live() {
			p.ack()
		}
		_, _ = e.link.try(ctx, protocol.MethodEnvironmentStatus, nil) // the answer comes after the acknowledgements
		e.end(ErrClosed)
		e.link.detached.Store(true)
		e.shut()
	})
	return err
}

// farewell is how the link ends its last connection.
func (l *link) farewell() transport.Reason {
	if l.detached.Load() {
		return lost
	}
	return done
}

// own records that a connection has become the session's owner. If the current connection
// is a later one, which observes, it is replaced.
func (l *link) own(conn *rpc.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observing = false
	if l.conn != nil && l.conn != conn {
		l.conn.Close(lost, errObserves)
	}
}

// errObserves is why a connection is replaced that observes a session of this program.
var errObserves = errors.New("the connection observes a session that is this program's own")

func (l *link) isObserving() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.observing
}

func (l *link) sessionID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.session
}

func (l *link) setSession(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.session = id
}

// inherit makes the link continue a session that another program began.
func (l *link) inherit(o *Options) error {
	switch {
	case o.Session != "" && o.Observe != "":
		return errors.New("client: Options.Session and Options.Observe are both set")
	case o.NoSession && o.Session+o.Observe != "":
		return errors.New("client: Options.NoSession is set, and so is Session or Observe")
	}
	l.session = o.Session + o.Observe
	l.observing = o.Observe != "" || o.NoSession
	if l.session != "" {
		l.env.inherited = true
		l.env.prefix = uniquePrefix()
	}
	return nil
}

// listable are the methods that a client without a session may call.
var listable = map[string]bool{
	protocol.MethodEnvironmentInfo:   true,
	protocol.MethodEnvironmentStatus: true,
	protocol.MethodList:              true,
	protocol.MethodUsage:             true,
	protocol.MethodSessions:          true,
	protocol.MethodRecordings:        true,
	protocol.MethodReadRecording:     true,
	protocol.MethodWebLink:           true,
	protocol.MethodSignal:            true, // in another session
	protocol.MethodTerminate:         true, // the same
	protocol.MethodEndSession:        true,
}

// permit returns an error for a method that the server would refuse to this client.
func (l *link) permit(method string) error {
	switch {
	case l.env.opts.NoSession && !listable[method]:
		return fmt.Errorf("%s: %w", method, ErrNoSession)
	case l.env.opts.NoSession, protocol.ForObservers(method), !l.isObserving():
		return nil
	}
	return fmt.Errorf("%s: %w", method, ErrObserving)
}

// resumePatience is how long the first connection tries to resume a session that is still
// attached: the server may notice the end of its last connection later than its program.
const resumePatience = 3 * time.Second

// first makes the first connection.
func (l *link) first(ctx context.Context) (*rpc.Conn, *initializeResult, error) {
	for deadline := time.Now().Add(resumePatience); ; {
		conn, result, err := l.connect(ctx)
		if !errors.Is(err, protocol.ErrSessionAttached) || !l.resumes || time.Now().After(deadline) {
			return conn, result, err
		}
		select {
		case <-time.After(5 * minPause):
		case <-ctx.Done():
			return nil, nil, err
		}
	}
}

// unexpected says why a server answers with another session than the one asked for.
func (l *link) unexpected(r *initializeResult) error {
	if l.env.opts.NoSession {
		return &UnsupportedError{"connect without a session", capSessions}
	}
	if l.isObserving() && (r.EnvironmentInfo == nil || string(r.EnvironmentInfo.Capabilities[capObserve]) != "true") {
		return &UnsupportedError{"observe a session", capObserve}
	}
	return fmt.Errorf("exec-server initialized an unexpected session %s", r.SessionID)
}

// foreign reports whether a process with this id may be one that another program started,
// and that this one has not read to its end.
func (e *Environment) foreign(id string) bool {
	if !e.inherited {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.read[id] && !isOwn(id, e.prefix)
}

func isOwn(id, prefix string) bool { return len(id) > len(prefix) && id[:len(prefix)] == prefix }

// noteRead records that a process of Attach has closed and was read to its end.
func (e *Environment) noteRead(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.read == nil {
		e.read = make(map[string]bool)
	}
	e.read[id] = true
}

// list lists the processes of the session, or those of all sessions.
func (l *link) list(ctx context.Context, all bool) (*protocol.ListResult, error) {
	r := new(protocol.ListResult)
	var params any
	if all {
		params = protocol.ListParams{All: true}
	}
	raw, err := l.repeat(ctx, protocol.MethodList, params)
	if err == nil {
		err = json.Unmarshal(raw, r)
	}
	return r, err
}

// terminateOthers ends the processes of the session that are not among those given.
func (e *Environment) terminateOthers(ctx context.Context, known []*Process) {
	if !e.has(capList) {
		return
	}
	// Again, because what closes between two requests may leave something behind.
	for ctx.Err() == nil {
		list, err := e.link.list(ctx, false)
		if err != nil {
			return // the end of the session ends them
		}
		var ids []string
		for _, listed := range list.Processes {
			mine := slices.ContainsFunc(known, func(p *Process) bool { return p.ID == listed.ProcessID })
			if listed.State != protocol.StateClosed && !mine {
				ids = append(ids, listed.ProcessID)
			}
		}
		for _, left := range list.Background {
			ids = append(ids, left.ProcessID)
		}
		if len(ids) == 0 {
			return
		}
		for _, id := range ids {
			_ = e.link.terminate(ctx, id, 0)
		}
		select {
		case <-time.After(minPause):
		case <-ctx.Done():
		}
	}
}

// forsake lets a process end although readers have not consumed its output.
func (p *Process) forsake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold, p.cursors = nil, nil
	p.consumedLocked(0, 0)
}
