// Package testclient is a client of the protocol for tests that need more than a
// transcript: many processes at once, lost connections, observers. It fails a connection
// on which the server sends a request, an answer to no request, or anything that is not
// JSON-RPC.
//
// [Dial] makes one connection. [Open] makes a session that resumes after it has lost its
// connection.
package testclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"execserver/internal/testkit/transcript"
	"execserver/protocol"
)

// Options of a connection.
type Options struct {
	// Resume or Observe is the id of a session; at most one may be set.
	Resume, Observe string

	// Asks are the capabilities that the client asks for.
	Asks protocol.ClientCapabilities

	// Dialer makes the connection. If it is nil, the zero net.Dialer does.
	Dialer *net.Dialer

	// Notify is called with every notification, in order, on the goroutine that reads
	// the connection. It may keep params.
	Notify func(method string, params json.RawMessage)
}

// Conn is one connection. Its methods may be called concurrently after the handshake.
type Conn struct {
	Link      transcript.Conn // carries the messages
	SessionID string
	Info      protocol.EnvironmentInfo

	notify func(string, json.RawMessage)
	binary atomic.Bool   // send data in binary messages
	done   chan struct{} // closed when the reader is gone

	writing sync.Mutex
	reading sync.Mutex // held by whoever has paused the reader

	mu      sync.Mutex
	next    int64
	pending map[protocol.ID]chan Answer
	notes   int   // number of notifications received
	err     error // why the connection ended
}

// Answer is the response to a request.
type Answer struct {
	protocol.Message
	Notes int // number of notifications received before it
}

// Decode stores the result in the value that result points to, unless result is nil. If
// the server refused the request, Decode returns a *protocol.Error.
func (a *Answer) Decode(result any) error {
	switch {
	case a.Kind == protocol.ErrorResponse:
		return a.Error
	case result != nil:
		return json.Unmarshal(a.Result, result)
	}
	return nil
}

// Dial connects to a WebSocket URL and makes the handshake. If the server refuses it, the
// error is a *protocol.Error.
func Dial(ctx context.Context, url string, o Options) (*Conn, error) {
	dialer := o.Dialer
	if dialer == nil {
		dialer = new(net.Dialer)
	}
	link, err := transcript.DialWebSocketBy(ctx, dialer, url, nil, nil)
	if err != nil {
		return nil, err
	}
	c := New(link, o.Notify)
	p := protocol.InitializeParams{ClientName: "test", Capabilities: o.Asks}
	if o.Resume != "" {
		p.ResumeSessionID = &o.Resume
	}
	if o.Observe != "" {
		p.ObserveSessionID = &o.Observe
	}
	if err := c.Handshake(ctx, p); err != nil {
		c.Drop()
		return nil, err
	}
	return c, nil
}

// New returns a client for a connection, without a handshake. See Options for notify.
func New(link transcript.Conn, notify func(method string, params json.RawMessage)) *Conn {
	c := &Conn{Link: link, notify: notify, done: make(chan struct{}), pending: make(map[protocol.ID]chan Answer)}
	go c.read()
	return c
}

// Handshake sends initialize and, if the server accepts, initialized. If the server
// refuses, the error is a *protocol.Error. Params are protocol.InitializeParams or
// whatever else the test sends.
func (c *Conn) Handshake(ctx context.Context, params any) error {
	var result protocol.InitializeResult
	if err := c.Call(ctx, protocol.MethodInitialize, params, &result); err != nil {
		return err
	}
	c.SessionID = result.SessionID
	if result.EnvironmentInfo != nil {
		c.Info = *result.EnvironmentInfo
	}
	if p, ok := params.(protocol.InitializeParams); ok {
		c.binary.Store(p.Capabilities.BinaryFrames && c.Info.Capabilities.BinaryFrames)
	}
	return c.Notify(protocol.MethodInitialized, nil)
}

// read delivers messages until the connection ends.
func (c *Conn) read() {
	defer close(c.done)
	for {
		message, err := c.Link.Receive()
		c.reading.Lock()
		if err == nil {
			err = c.deliver(message)
		}
		c.reading.Unlock()
		if err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *Conn) deliver(message []byte) error {
	m, err := parse(message)
	if err != nil {
		return fmt.Errorf("the server sent %.200q: %w", message, err)
	}
	switch m.Kind {
	case protocol.Notification:
		c.mu.Lock()
		c.notes++
		c.mu.Unlock()
		if c.notify != nil {
			c.notify(m.Method, m.Params)
		}
	case protocol.Response, protocol.ErrorResponse:
		c.mu.Lock()
		answer := c.pending[m.ID]
		delete(c.pending, m.ID)
		notes := c.notes
		c.mu.Unlock()
		if answer == nil {
			return fmt.Errorf("the server sent an answer to nothing: %.200q", message)
		}
		answer <- Answer{m, notes}
	default:
		return fmt.Errorf("the server sent a request: %.200q", message)
	}
	return nil
}

func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	for id, answer := range c.pending {
		delete(c.pending, id)
		close(answer)
	}
}

// Call sends a request, waits for the answer and decodes it as Answer.Decode does.
func (c *Conn) Call(ctx context.Context, method string, params, result any) error {
	answer, err := c.Send(ctx, method, params)
	if err != nil {
		return err
	}
	return answer(ctx, result)
}

// Send sends a request and returns a function that waits for the answer, as Call does.
func (c *Conn) Send(ctx context.Context, method string, params any) (answer func(ctx context.Context, result any) error, err error) {
	reply, err := c.Begin(method, params)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, result any) error {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", method, context.Cause(ctx))
		case a, ok := <-reply:
			if !ok {
				return c.Err()
			}
			return a.Decode(result)
		}
	}, nil
}

// Begin sends a request and returns a channel for the answer. If the connection ends
// first, Begin closes the channel.
func (c *Conn) Begin(method string, params any) (<-chan Answer, error) {
	reply := make(chan Answer, 1)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.next++
	id := protocol.NumberID(c.next)
	c.pending[id] = reply
	c.mu.Unlock()
	message, frame, err := encode(id, method, params, c.binary.Load())
	if err != nil {
		return nil, err
	}
	return reply, c.write(frame, message)
}

// Notify sends a notification.
func (c *Conn) Notify(method string, params any) error {
	text, err := protocol.AppendNotification(nil, method, params)
	if err != nil {
		return err
	}
	return c.write(transcript.Whole, text)
}

// write sends a message. A transcript.Conn accepts one at a time.
func (c *Conn) write(frame transcript.Frame, message []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.Link.Send(frame, message)
}

// Pause stops reading after at most one more message, until Unpause.
func (c *Conn) Pause() { c.reading.Lock() }

// Unpause undoes Pause.
func (c *Conn) Unpause() { c.reading.Unlock() }

// Done is closed when the connection has ended; Err says why.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns the reason why the connection ended, or nil if it is open.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection in the orderly way of its transport.
func (c *Conn) Close() {
	_ = c.Link.End(1000, "the client is done")
	<-c.done
	c.Link.Drop()
}

// Cut breaks the connection. Notify may still be called with messages that have arrived.
func (c *Conn) Cut() {
	c.fail(net.ErrClosed)
	c.Link.Drop()
}

// Drop is like Cut, and then waits until the last call of Notify has returned.
func (c *Conn) Drop() {
	c.Cut()
	<-c.done
}
