package testclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"execserver/protocol"
)

// Session is a session that connects again whenever it loses its connection. It
// acknowledges events, and checks the order of the events of each process: their numbers
// have no gaps, and closed comes last.
type Session struct {
	URL  string
	Asks protocol.ClientCapabilities

	Dialer *net.Dialer // as in Options

	// AckEvery is the number of events of a process after which the session
	// acknowledges them; the default is 1.
	AckEvery int

	// Patience is the time after which the session gives up a connection on which the
	// server does not answer; the default is 5 seconds.
	Patience time.Duration

	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu        sync.Mutex
	id        string
	conn      *Conn         // nil while there is none
	attached  chan struct{} // closed when conn is set
	processes map[string]*Process
	resumes   int
}

// Process is one process of a Session. The session calls Take once for each piece of
// output, in order.
type Process struct {
	ID   string
	Take func(stream string, data []byte)

	mu      sync.Mutex
	last    uint64 // number of the last event
	acked   uint64
	exited  bool
	code    int
	closed  bool
	repeats int
	done    chan struct{} // closed when the process has closed
}

// Open makes a session, which ends when Close is called or ctx is done.
func Open(ctx context.Context, s *Session) error {
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.done = make(chan struct{})
	s.attached = make(chan struct{})
	s.processes = make(map[string]*Process)
	s.Asks.ProcessAck = true
	s.AckEvery = max(s.AckEvery, 1)
	if s.Patience <= 0 {
		s.Patience = 5 * time.Second
	}
	conn, err := s.dial("")
	for ; err != nil && s.ctx.Err() == nil && !refusal(err); conn, err = s.dial("") {
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		return err
	}
	s.id = conn.SessionID
	s.attach(conn)
	go s.keep(conn)
	return nil
}

// refusal reports whether err is the server's final refusal.
func refusal(err error) bool {
	var e *protocol.Error
	return errors.As(err, &e) && e.Code != protocol.CodeSessionAttached
}

func (s *Session) dial(resume string) (*Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.Patience)
	defer cancel()
	return Dial(ctx, s.URL, Options{Resume: resume, Asks: s.Asks, Notify: s.notify, Dialer: s.Dialer})
}

func (s *Session) attach(conn *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = conn
	close(s.attached)
	// What came while the connection was not known here was not acknowledged.
	for _, p := range s.processes {
		p.ack(conn)
	}
}

// keep connects again whenever the connection is lost.
func (s *Session) keep(conn *Conn) {
	defer close(s.done)
	for s.ctx.Err() == nil {
		s.watch(conn)
		s.mu.Lock()
		s.conn, s.attached = nil, make(chan struct{})
		s.mu.Unlock()
		conn.Drop()
		var err error
		for conn, err = s.dial(s.id); err != nil; conn, err = s.dial(s.id) {
			if s.ctx.Err() != nil {
				return
			}
			if refusal(err) {
				s.cancel(fmt.Errorf("resume: %w", err))
				return
			}
			time.Sleep(time.Millisecond)
		}
		s.mu.Lock()
		s.resumes++
		s.mu.Unlock()
		s.attach(conn)
	}
	conn.Drop()
}

// watch returns when the connection has ended or the server does not answer on it.
func (s *Session) watch(conn *Conn) {
	for {
		ctx, cancel := context.WithTimeout(s.ctx, s.Patience)
		err := conn.Call(ctx, protocol.MethodEnvironmentStatus, nil, nil)
		cancel()
		if err != nil {
			return
		}
		select {
		case <-conn.Done():
			return
		case <-s.ctx.Done():
			return
		case <-time.After(s.Patience / 2):
		}
	}
}

// current waits for a connection.
func (s *Session) current(ctx context.Context) (*Conn, error) {
	for {
		s.mu.Lock()
		conn, attached := s.conn, s.attached
		s.mu.Unlock()
		if conn != nil {
			return conn, nil
		}
		select {
		case <-attached:
		case <-s.ctx.Done():
			return nil, context.Cause(s.ctx)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Call sends a request again on each new connection until the server answers it. The
// server may therefore receive the request twice.
func (s *Session) Call(ctx context.Context, method string, params, result any) error {
	for {
		conn, err := s.current(ctx)
		if err != nil {
			return err
		}
		try, cancel := context.WithTimeout(ctx, s.Patience)
		err = conn.Call(try, method, params, result)
		cancel()
		var refused *protocol.Error
		switch {
		case err == nil, errors.As(err, &refused):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case s.ctx.Err() != nil:
			return context.Cause(s.ctx)
		}
		// Either the connection is lost, or its loss will be noticed.
		time.Sleep(time.Millisecond)
	}
}

// Start starts a process. Its start id keeps a repeated request from starting another.
func (s *Session) Start(ctx context.Context, p *Process, params protocol.StartParams) error {
	p.done = make(chan struct{})
	s.mu.Lock()
	s.processes[p.ID] = p
	s.mu.Unlock()
	params.ProcessID, params.StartID = p.ID, &p.ID
	return s.Call(ctx, protocol.MethodStart, params, nil)
}

// Forget removes a closed process from the session, which otherwise keeps all of them.
func (s *Session) Forget(p *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.processes, p.ID)
}

// ID returns the session's id.
func (s *Session) ID() string { return s.id }

// Cut breaks the connection, if there is one. The session then connects again.
func (s *Session) Cut() {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		conn.Cut()
	}
}

// Resumes returns the number of times that the session has resumed.
func (s *Session) Resumes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resumes
}

// Done returns a channel that is closed when the session fails or ends.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// Err returns the reason for the end of the session, or nil if it goes on.
func (s *Session) Err() error { return context.Cause(s.ctx) }

// Close ends the connection. The server keeps the session until it expires.
func (s *Session) Close() {
	s.cancel(context.Canceled)
	s.Cut()
	<-s.done
}

// notify handles an event. One in the wrong place ends the session.
func (s *Session) notify(method string, params json.RawMessage) {
	if err := s.take(method, params); err != nil {
		s.cancel(err)
		go s.Cut()
	}
}

func (s *Session) take(method string, params json.RawMessage) error {
	e, err := decodeEvent(method, params)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, params, err)
	}
	s.mu.Lock()
	p, conn := s.processes[e.ProcessID], s.conn
	s.mu.Unlock()
	if p == nil || e.Seq == 0 {
		return nil // another's, or one without a number
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case e.Seq <= p.last:
		p.repeats++
		// The acknowledgement was lost.
		p.acked = min(p.acked, e.Seq-1)
		if conn != nil && e.Seq == p.last {
			p.ackLocked(conn)
		}
		return nil
	case e.Seq != p.last+1:
		return fmt.Errorf("process %s: event %d follows event %d", p.ID, e.Seq, p.last)
	case p.closed:
		return fmt.Errorf("process %s: event %d after closed", p.ID, e.Seq)
	}
	p.last = e.Seq
	switch method {
	case protocol.NotificationOutput:
		if p.Take != nil {
			p.Take(e.Stream, e.Data)
		}
	case protocol.NotificationExited:
		if p.exited {
			return fmt.Errorf("process %s: exited twice", p.ID)
		}
		p.exited, p.code = true, e.ExitCode
	case protocol.NotificationClosed:
		if !p.exited {
			return fmt.Errorf("process %s: closed before it has exited", p.ID)
		}
		p.closed = true
		close(p.done)
	default:
		return fmt.Errorf("process %s: %s has a number", p.ID, method)
	}
	if conn != nil && (p.closed || p.last-p.acked >= uint64(s.AckEvery)) {
		p.ackLocked(conn)
	}
	return nil
}

// ack acknowledges the events received so far.
func (p *Process) ack(conn *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last > p.acked {
		p.ackLocked(conn)
	}
}

func (p *Process) ackLocked(conn *Conn) {
	// If it is lost, the session acknowledges again after it has resumed.
	_ = conn.Notify(protocol.MethodAck, protocol.AckParams{ProcessID: p.ID, Seq: p.last})
	p.acked = p.last
}

// Wait waits until the process has closed and returns its exit code.
func (p *Process) Wait(ctx context.Context) (code int, err error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		return 0, fmt.Errorf("process %s is not closed after event %d: %w", p.ID, p.Last(), context.Cause(ctx))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code, nil
}

// Closed is closed when the process has closed.
func (p *Process) Closed() <-chan struct{} { return p.done }

// Last returns the number of the last event.
func (p *Process) Last() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// Repeats returns the number of events that the server sent more than once.
func (p *Process) Repeats() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.repeats
}
