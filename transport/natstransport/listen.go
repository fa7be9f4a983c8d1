package natstransport

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"execserver/transport"
)

// version is that of the frames and requests. Both sides must have the same.
const version = 1

// backlog is how many connections may wait for Accept.
const backlog = 64

// openRequest asks a machine for a connection.
type openRequest struct {
	Version int    `json:"version"`
	Key     string `json:"key"` // DIALER.ID in the subjects
	Window  int64  `json:"window"`
	Call
}

// Call is what a dialer tells a machine about a connection.
type Call struct {
	// Instance is the Options.Instance of the machine that is meant. A machine that is
	// another instance does not answer; "" means whoever has the name.
	Instance string `json:"instance,omitempty"`
	// Remote says in the machine's log who connects.
	Remote string `json:"remote,omitempty"`
	// Hello is JSON that Conn.Hello returns at the machine; nil for nothing.
	Hello json.RawMessage `json:"hello,omitempty"`
}

// openAnswer answers an openRequest.
type openAnswer struct {
	Version int    `json:"version"`
	Window  int64  `json:"window,omitempty"`
	Refusal string `json:"refusal,omitempty"`
}

// ValidName reports whether a machine can have a name: 1 to 64 letters, digits, - and _.
func ValidName(name string) bool {
	const good = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
	return name != "" && len(name) <= 64 && strings.Trim(name, good) == ""
}

// Listener accepts connections to a name. Its methods may be called concurrently.
type Listener struct {
	*endpoint
	name    string
	waiting chan *Conn
}

// Listen makes this program the machine of a name. It does not find out whether another
// one has the name, too; the caller has to. nc stays the caller's, who should bound its
// time for writes with nats.FlusherTimeout.
func Listen(nc *nats.Conn, name string, opts *Options) (*Listener, error) {
	if !ValidName(name) {
		return nil, fmt.Errorf("invalid name %q", name)
	}
	l := &Listener{endpoint: newEndpoint(nc, opts), name: name, waiting: make(chan *Conn, backlog)}
	prefix := l.opts.Prefix
	err := l.subscribe(prefix+".in."+name+".*.*", func(m *nats.Msg) {
		key := key(m.Subject)
		l.frame(m.Data, key, prefix+".out."+name+"."+key)
	})
	if err == nil {
		err = l.subscribe(prefix+".open."+name, l.open)
	}
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		l.stop(transport.Reason{Code: transport.CodeInternal})
		return nil, err
	}
	return l, nil
}

// open handles a request for a connection.
func (l *Listener) open(m *nats.Msg) {
	var request openRequest
	answer := openAnswer{Version: version, Window: l.opts.Window}
	if err := json.Unmarshal(m.Data, &request); err != nil {
		answer.Refusal = "the request is not understood"
	} else if request.Version != version {
		answer.Refusal = fmt.Sprintf("the machine speaks version %d, not %d", version, request.Version)
	} else if request.Instance != "" && request.Instance != l.opts.Instance {
		return // another machine of this name is meant, which answers itself
	} else if !validKey(request.Key) || request.Window < minWindow {
		answer.Refusal = "the request is invalid"
	} else {
		answer.Refusal = l.admit(request)
	}
	text, _ := json.Marshal(answer) // cannot fail
	_ = m.Respond(text)             // the dialer gives up without it, and the connection is lost
}

// validKey reports whether a text is two tokens of a subject.
func validKey(key string) bool {
	dialer, id, _ := strings.Cut(key, ".")
	return ValidName(dialer) && ValidName(id)
}

// admit makes the connection of a request, or says why not.
func (l *Listener) admit(r openRequest) (refusal string) {
	remote := r.Remote
	if remote == "" {
		remote = "NATS client " + r.Key
	}
	c := newConn(l.endpoint, r.Key, l.opts.Prefix+".out."+l.name+"."+r.Key, remote, r.Hello)
	c.open(r.Window)
	if err := l.add(c); err != nil {
		return err.Error()
	}
	select {
	case l.waiting <- c:
		return ""
	default:
		c.finish(transport.ErrClosed)
		return "too many connections wait to be accepted"
	}
}

// Accept returns the next connection. It returns transport.ErrClosed after Close.
func (l *Listener) Accept() (*Conn, error) {
	select {
	case <-l.done:
		return nil, transport.ErrClosed
	default:
	}
	select {
	case c := <-l.waiting:
		return c, nil
	case <-l.done:
		return nil, transport.ErrClosed
	}
}

// Close ends the listener and its connections.
func (l *Listener) Close() {
	l.stop(transport.Reason{Code: transport.CodeGoingAway, Text: "the machine leaves"})
}

// Dialer opens connections to machines. Its methods may be called concurrently.
type Dialer struct {
	*endpoint
	id string
}

// NewDialer returns a Dialer over a connection to NATS, which stays the caller's.
func NewDialer(nc *nats.Conn, opts *Options) (*Dialer, error) {
	d := &Dialer{endpoint: newEndpoint(nc, opts), id: rand.Text()}
	prefix := d.opts.Prefix
	err := d.subscribe(prefix+".out.*."+d.id+".*", func(m *nats.Msg) {
		d.frame(m.Data, key(m.Subject), prefix+".in"+strings.TrimPrefix(m.Subject, prefix+".out"))
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// ErrNoMachine is in the error of Dial if no machine of the name listens.
var ErrNoMachine = errors.New("no such machine is connected")

// RefusedError is the error of Dial if the machine refuses the connection.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "the machine refuses the connection: " + e.Reason }

// Dial opens a connection to the machine of a name. ctx bounds the dialing.
func (d *Dialer) Dial(ctx context.Context, name string, call Call) (*Conn, error) {
	if !ValidName(name) {
		return nil, ErrNoMachine
	}
	key := d.id + "." + rand.Text()
	c := newConn(d.endpoint, key, d.opts.Prefix+".in."+name+"."+key, name, nil)
	if err := d.add(c); err != nil {
		return nil, err
	}
	window, err := d.request(ctx, name, openRequest{version, key, d.opts.Window, call})
	if err != nil {
		c.finish(err)
		return nil, err
	}
	c.open(window)
	return c, nil
}

// request asks a machine for a connection, and returns its window.
func (d *Dialer) request(ctx context.Context, name string, request openRequest) (window int64, err error) {
	text, err := json.Marshal(request)
	if err != nil {
		return 0, err
	}
	m, err := d.nc.RequestWithContext(ctx, d.opts.Prefix+".open."+name, text)
	if errors.Is(err, nats.ErrNoResponders) {
		return 0, ErrNoMachine
	}
	if err != nil {
		return 0, fmt.Errorf("ask the machine %s for a connection: %w", name, err)
	}
	var answer openAnswer
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return 0, fmt.Errorf("ask the machine %s for a connection: %w", name, err)
	}
	switch {
	case answer.Refusal != "":
		return 0, &RefusedError{answer.Refusal}
	case answer.Version != version || answer.Window < minWindow:
		return 0, fmt.Errorf("the machine %s speaks version %d of the transport, and this program speaks %d", name, answer.Version, version)
	}
	return answer.Window, nil
}

// Close ends the connections of the Dialer.
func (d *Dialer) Close() {
	d.stop(transport.Reason{Code: transport.CodeGoingAway, Text: "the gateway shuts down"})
}
