// Package testclient is a client of the wire for tests that need more than a
// transcript: many processes at once, lost connections, observers. It checks
// what a server must never do wrong and hides nothing else.
//
// Start at [Dial], one connection, and at [Open], a session that comes back
// after it has lost one.
package testclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/coder/websocket"

	"execserver/protocol"
)

// Options of a connection.
type Options struct {
	// Resume and Observe are ids of sessions, at most one of them.
	Resume, Observe string

	// Asks are the capabilities asked for.
	Asks protocol.ClientCapabilities

	// Client makes the connection; nil means http.DefaultClient.
	Client *http.Client

	// Notify gets every notification, in order, on the goroutine that reads:
	// what it delays delays the connection. Params are its own.
	Notify func(method string, params json.RawMessage)
}

// Conn is one connection after its handshake. All methods may be called
// concurrently.
type Conn struct {
	SessionID string
	Info      protocol.EnvironmentInfo

	socket *websocket.Conn
	notify func(string, json.RawMessage)
	done   chan struct{} // closed when the reader is gone

	mu      sync.Mutex
	next    int64
	pending map[protocol.ID]chan protocol.Message
	err     error // why it ended
}

// Dial connects to a WebSocket URL and does the handshake. The error is a
// *protocol.Error when the server refused.
func Dial(ctx context.Context, url string, o Options) (*Conn, error) {
	socket, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: o.Client})
	if err != nil {
		return nil, err
	}
	socket.SetReadLimit(-1)
	c := &Conn{socket: socket, notify: o.Notify, done: make(chan struct{}), pending: make(map[protocol.ID]chan protocol.Message)}
	go c.read()
	p := protocol.Initialize{ClientName: "test", Capabilities: o.Asks}
	if o.Resume != "" {
		p.ResumeSessionID = &o.Resume
	}
	if o.Observe != "" {
		p.ObserveSessionID = &o.Observe
	}
	var result protocol.InitializeResult
	err = c.Call(ctx, protocol.MethodInitialize, p, &result)
	if err == nil {
		c.SessionID, c.Info = result.SessionID, *result.EnvironmentInfo
		err = c.Notify(protocol.MethodInitialized, nil)
	}
	if err != nil {
		c.Drop()
		return nil, err
	}
	return c, nil
}

// read delivers what comes until the connection ends.
func (c *Conn) read() {
	defer close(c.done)
	var buf []byte
	for {
		message, err := c.receive(&buf)
		if err == nil {
			err = c.deliver(message)
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

// receive reads a message into buf.
func (c *Conn) receive(buf *[]byte) ([]byte, error) {
	_, r, err := c.socket.Reader(context.Background())
	if err != nil {
		return nil, err
	}
	b := (*buf)[:0]
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			*buf = b
			return b, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (c *Conn) deliver(message []byte) error {
	m, err := protocol.ParseMessage(message)
	if err != nil {
		return fmt.Errorf("the server sent %.200q: %w", message, err)
	}
	switch m.Kind {
	case protocol.Notification:
		if c.notify != nil {
			c.notify(m.Method, m.Params)
		}
	case protocol.Response, protocol.ErrorResponse:
		c.mu.Lock()
		answer := c.pending[m.ID]
		delete(c.pending, m.ID)
		c.mu.Unlock()
		if answer == nil {
			return fmt.Errorf("the server sent an answer to nothing: %.200q", message)
		}
		m.Result = append(json.RawMessage(nil), m.Result...)
		answer <- m
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

// Call sends a request and waits for the answer, which it decodes into result
// unless that is nil. The error is a *protocol.Error when the server refused.
func (c *Conn) Call(ctx context.Context, method string, params, result any) error {
	answer, err := c.Send(ctx, method, params)
	if err != nil {
		return err
	}
	return answer(ctx, result)
}

// Send sends a request; what it returns waits for the answer.
func (c *Conn) Send(ctx context.Context, method string, params any) (answer func(ctx context.Context, result any) error, err error) {
	reply := make(chan protocol.Message, 1)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.next++
	id := protocol.NumberID(c.next)
	c.pending[id] = reply
	c.mu.Unlock()
	text, err := protocol.AppendRequest(nil, id, method, params)
	if err != nil {
		return nil, err
	}
	if err := c.write(text); err != nil {
		return nil, err
	}
	return func(ctx context.Context, result any) error {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", method, context.Cause(ctx))
		case m, ok := <-reply:
			switch {
			case !ok:
				return c.Err()
			case m.Kind == protocol.ErrorResponse:
				return m.Error
			case result != nil:
				return json.Unmarshal(m.Result, result)
			}
			return nil
		}
	}, nil
}

// Notify sends a notification.
func (c *Conn) Notify(method string, params any) error {
	text, err := protocol.AppendNotification(nil, method, params)
	if err != nil {
		return err
	}
	return c.write(text)
}

// write does not depend on any request: an interrupted frame ends a connection.
func (c *Conn) write(text []byte) error {
	return c.socket.Write(context.Background(), websocket.MessageText, text)
}

// Done is closed when the connection has ended; Err says why.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the connection has ended, nil while it has not.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close says farewell and ends the connection.
func (c *Conn) Close() {
	_ = c.socket.Close(websocket.StatusNormalClosure, "the client is done")
	<-c.done
}

// Cut ends the connection without a word. Notify may still get what has arrived.
func (c *Conn) Cut() {
	c.fail(net.ErrClosed)
	_ = c.socket.CloseNow()
}

// Drop is Cut, and waits until Notify is not called any more.
func (c *Conn) Drop() {
	c.Cut()
	<-c.done
}
