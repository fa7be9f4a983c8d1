package natstransport

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"execserver/transport"
)

// version is the version of frames and requests, which both sides must share.
const version = 1

// backlog is the number of connections that may wait for Accept.
const backlog = 64

// openRequest asks a machine for a connection.
type openRequest struct {
	Version int    `json:"version"`
	Key     string `json:"key"` // DIALER.ID in the subjects
	Window  int64  `json:"window"`
	Call
}

// Call describes a connection to the machine.
type Call struct {
	// Instance is the Options.Instance of the machine. Other instances do not answer; ""
	// means any machine with the name.
	Instance string `json:"instance,omitempty"`
	// Remote describes the client in the machine's log.
	Remote string `json:"remote,omitempty"`
	// Hello is JSON that Conn.Hello returns at the machine; nil for nothing.
	Hello json.RawMessage `json:"hello,omitempty"`
}

// openAnswer answers an openRequest.
type openAnswer struct {
	Version  int    `json:"version"`
	Instance string `json:"instance,omitempty"`
	Window   int64  `json:"window,omitempty"`
	Refusal  string `json:"refusal,omitempty"`
}

// ValidName reports whether a name is valid for a machine: 1 to 64 letters, digits, - and _.
func ValidName(name string) bool {
	const good = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
	return name != "" && len(name) <= 64 && strings.Trim(name, good) == ""
}

// Listener accepts connections to a name. Its methods may be called concurrently.
type Listener struct {
	*endpoint
	name    string
	waiting chan *Conn
	strict  atomic.Bool // of RequireInstance
}

// Listen accepts connections to a name. The caller must ensure that no other machine uses the
// name. Listen does not close nc, whose write timeout the caller should set with
// nats.FlusherTimeout.
func Listen(nc *nats.Conn, name string, opts *Options) (*Listener, error) {
	if !ValidName(name) {
		return nil, fmt.Errorf("invalid name %q", name)
	}
	l := &Listener{endpoint: newEndpoint(nc, opts), name: name, waiting: make(chan *Conn, backlog)}
	if l.opts.Instance == "" {
		l.opts.Instance = rand.Text()
	}
	prefix := l.opts.Prefix
	// One subscription serves all connections, because only gateways publish there. So a
	// machine costs the NATS servers the same however many connections it has.
	err := l.subscribe(prefix+".in."+name+"."+l.opts.Instance+".*.*", l.frame)
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

// RequireInstance makes the listener answer only requests that name its instance, or again all
// requests for its name. Use it while another machine has the name. Open connections continue.
func (l *Listener) RequireInstance(require bool) { l.strict.Store(require) }

// frame handles a frame.
func (l *Listener) frame(m *nats.Msg) {
	key := key(m.Subject)
	l.mu.Lock()
	c := l.conns[key]
	l.mu.Unlock()
	if c != nil {
		c.receive(m.Data)
		return
	}
	if kind, _, _, err := parse(m.Data); err == nil && kind != frameReset && kind != frameClose {
		_ = l.nc.Publish(l.out(key), []byte{frameReset}) // the next frame causes another one
	}
}

// out returns the subject of frames to a dialer.
func (l *Listener) out(key string) string { return l.opts.Prefix + ".out." + l.name + "." + key }

// open handles a request for a connection.
func (l *Listener) open(m *nats.Msg) {
	var request openRequest
	answer := openAnswer{Version: version, Instance: l.opts.Instance, Window: l.opts.Window}
	if err := json.Unmarshal(m.Data, &request); err != nil {
		answer.Refusal = "the request is not understood"
	} else if request.Version != version {
		answer.Refusal = fmt.Sprintf("the machine speaks version %d, not %d", version, request.Version)
	} else if request.Instance != l.opts.Instance && (request.Instance != "" || l.strict.Load()) {
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
	c := newConn(l.endpoint, r.Key, l.out(r.Key), remote, r.Hello)
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
