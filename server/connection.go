package server

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"execserver/internal/auth"
	"execserver/internal/rpc"
	"execserver/internal/session"
	"execserver/protocol"
	"execserver/transport"
)

// connection serves one client: it is the rpc.Handler of the transport and the Peer of the
// session. It begins and ends the connection, completes the handshake (handshake.go), and
// dispatches messages (dispatch.go). Handlers serve the requests, one for each family of
// methods. They see the connection only through its caller.
type connection struct {
	*caller
	rpc       *rpc.Conn
	handshake handshake
	left      bool // the connection has ended; guarded by caller.mu
	counted   bool // among the connections with a session; guarded by server.mu

	environment *environmentHandler
	processes   *processHandler
	files       *fileHandler
	sessions    *sessionHandler
	recordings  *recordingHandler
	http        *httpHandler
	tcp         *tcpHandler
}

// finishTimeout is how long the requests before the end of input may take, on stdio and on
// unix sockets.
const finishTimeout = 10 * time.Second

// abandonTimeout bounds the wait for the goroutines of a connection that has ended; they end
// without further help. If the connection is the only one, as on stdio, its reader may be in
// a read of standard input that only the end of the program interrupts, and the program ends
// next.
const (
	abandonTimeout     = 5 * time.Second
	abandonOnlyTimeout = 20 * time.Millisecond
)

// newConnection returns a connection for a stream. It does nothing before run.
func newConnection(s *Server, stream transport.Conn, principal *auth.Principal, resumable bool) *connection {
	of := &caller{server: s, log: s.log.With("remote", stream.Remote()), principal: principal, remote: stream.Remote(), resumable: resumable}
	if principal.Name != "" {
		of.log = of.log.With("principal", principal.Name)
	}
	c := &connection{caller: of}
	c.rpc = rpc.New(stream, c, &rpc.Options{
		Log:             of.log,
		MaxMessageBytes: s.opts.MaxMessageBytes,
		PingInterval:    s.opts.PingInterval,
		ProbeTimeout:    s.opts.ProbeTimeout,
		FinishTimeout:   finishTimeout,
		Lasting:         lasts(stream),
		Memory:          c.holdMemory,
		Ended:           c.leave,
	})
	c.environment = &environmentHandler{caller: of, carriesBinary: c.rpc.CarriesBinary()}
	c.processes = &processHandler{caller: of}
	c.files = newFileHandler(of, c.rpc)
	c.sessions = &sessionHandler{caller: of}
	c.recordings = &recordingHandler{caller: of}
	c.http = newHTTPHandler(of, c.rpc)
	c.tcp = newTCPHandler(of, c.rpc)
	return c
}

// run serves the connection until it ends, and returns why.
func (c *connection) run(stream transport.Conn) error {
	c.log.Info("connection opened")
	c.beginHandshake(stream)
	if !c.server.auth.Valid(c.principal) { // they may have been revoked a moment ago
		c.end(errRevoked)
	}
	gone := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = c.rpc.Run() // the context's cause is the same
		c.rpc.Wait()
		c.http.close()
	})
	if !c.principal.Expires.IsZero() {
		wg.Go(c.expire)
	}
	<-c.rpc.Context().Done()
	c.handshake.finish()
	c.tcp.close(context.Cause(c.rpc.Context()))
	<-c.rpc.Closed()
	wg.Go(c.files.close) // which takes time on a file system that does not answer
	go func() {
		defer close(gone)
		wg.Wait()
	}()
	timeout := abandonTimeout
	if !c.resumable {
		timeout = abandonOnlyTimeout
	}
	select {
	case <-gone:
	case <-time.After(timeout):
		// A read of stdin outside the poller cannot be interrupted, and neither can a
		// file system that does not answer.
	}
	err := context.Cause(c.rpc.Context())
	c.log.Info("connection closed", "reason", err)
	c.auditClosed(err)
	return err
}

// holdMemory counts memory of messages, or releases it if bytes is negative.
func (c *connection) holdMemory(bytes int64) error {
	memory, of := c.server.quotas.memory, c.principal.QuotaKey()
	if bytes < 0 {
		memory.ReleaseN(of, int(-bytes))
		return nil
	}
	if refusal := memory.TakeN(of, int(bytes)); refusal != nil {
		return protocol.Errorf(protocol.CodeInvalidRequest, "%s", refusal.Of("has", "bytes of messages in memory"))
	}
	return nil
}

// enter binds the connection to its session, whose events it sends from now on.
func (c *connection) enter(s *session.Session, outbox *session.Outbox) {
	c.mu.Lock()
	c.session, c.outbox = s, outbox
	left := c.left
	c.mu.Unlock()
	if left {
		c.leaveSession(s, outbox)
		return
	}
	if !c.observing {
		s.Own(&c.changes)
	}
	c.rpc.SetSources(outbox, c.http, c.tcp.streams)
}

// leave leaves the session when the connection has ended. That comes before the stream is
// closed: a client that sees the end and comes back at once must find the session as its
// connection left it.
func (c *connection) leave() {
	c.mu.Lock()
	c.left = true
	s, outbox := c.session, c.outbox
	c.mu.Unlock()
	if s != nil {
		c.leaveSession(s, outbox)
	}
}

func (c *connection) leaveSession(s *session.Session, outbox *session.Outbox) {
	c.server.sessions.Leave(s, outbox, c.departure())
}

// departure returns how the connection has ended.
func (c *connection) departure() session.Departure {
	switch {
	case !c.resumable:
		return session.Final
	case c.rpc.ClosedCleanly():
		return session.CleanClose
	case silent(context.Cause(c.rpc.Context())):
		return session.Silent
	}
	return session.Lost
}

// silent reports whether a connection ended because the peer fell silent: it did not
// answer pings, its system did not answer, or it was unreachable. Such a peer may not know
// yet that the connection has ended.
func silent(cause error) bool {
	for _, err := range []error{rpc.ErrSilent, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH} {
		if errors.Is(cause, err) {
			return true
		}
	}
	return false
}

// state returns the state of the connection. counted reports that it is initialized, or
// about to be.
func (c *connection) state(counted bool) ConnectionState {
	session, outbox := c.attached()
	switch {
	case !counted:
		return ConnectionWaiting
	case session == nil:
		return ConnectionNoSession
	case session.Owned(outbox):
		return ConnectionOwner
	}
	return ConnectionObserver
}

// Name implements session.Peer.
func (c *connection) Name() string { return c.handshake.client }

// Capabilities implements session.Peer.
func (c *connection) Capabilities() protocol.ClientCapabilities { return c.handshake.capabilities }

// Credentials implements session.Peer.
func (c *connection) Credentials() session.Credentials { return c.credentials() }

// Writer implements session.Peer.
func (c *connection) Puller() session.Puller { return c.rpc }

// Probe implements session.Peer.
func (c *connection) Probe() bool { return c.rpc.Probe(c.rpc.Context()) }

// errObserverTookOver is the cause when an observer has become the owner.
var errObserverTookOver = errors.New("session has been taken over by an observer")

// TakenOver implements session.Peer.
func (c *connection) TakenOver(sessionID string, byObserver bool) {
	err := rpc.ErrTakenOver
	if byObserver {
		err = errObserverTookOver
		// If the notification cannot be sent, the connection ends all the same.
		_ = c.rpc.Notify(protocol.NotificationTakenOver, protocol.TakenOverParams{SessionID: sessionID})
	}
	c.rpc.Close(transport.Reason{Code: transport.CodePolicy, Text: err.Error()}, err)
}

// Disconnect implements session.Peer.
func (c *connection) Disconnect(reason string) {
	if c.server.closing() {
		return // Shutdown notifies every client
	}
	c.end(errors.New(reason))
}

// end closes the connection for a reason that it sends to the peer. The session can be
// resumed.
func (c *connection) end(reason error) {
	c.rpc.Close(transport.Reason{Code: transport.CodePolicy, Text: reason.Error()}, reason)
}

// shutDown notifies the client that its session has ended with the server, and closes the
// connection. Without the notification, the client would try to resume the session.
func (c *connection) shutDown() {
	if s, _ := c.attached(); s != nil {
		// If the notification cannot be sent, the connection ends all the same.
		_ = c.rpc.Notify(protocol.NotificationSessionEnded, protocol.SessionEndedParams{SessionID: s.ID})
	}
	c.rpc.Close(transport.Reason{Code: transport.CodeGoingAway, Text: "server is shutting down"}, ErrClosed)
}

// expiryInterval is how often a connection compares the clock with the expiry of its
// credentials. A timer would not count the time that the machine sleeps, and clocks are
// set.
const expiryInterval = 10 * time.Second

var (
	errExpired = errors.New("the credentials of this connection have expired; connect again with new ones to resume the session")
	errRevoked = errors.New("the credentials of this connection have been revoked or changed")
)

// expire ends the connection when its credentials expire.
func (c *connection) expire() {
	for {
		left := time.Until(c.principal.Expires)
		if left <= 0 {
			c.end(errExpired)
			return
		}
		select {
		case <-c.rpc.Context().Done():
			return
		case <-time.After(min(left, expiryInterval)):
		}
	}
}

// refuseStream sends an error to a peer that is not served, and closes its stream.
func refuseStream(stream transport.Conn, err error) {
	text := protocol.AppendErrorResponse(nil, protocol.MalformedID, protocol.Errorf(protocol.CodeInvalidRequest, "%s", err))
	_ = stream.Write(text)
	_ = stream.Close(transport.Reason{Code: transport.CodeTryAgainLater, Text: err.Error()})
}
