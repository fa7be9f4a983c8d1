package natstransport

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/transport"
)

// Defaults and bounds of Options.
const (
	DefaultPrefix   = "exec"
	DefaultWindow   = 1 << 20
	DefaultInterval = time.Second

	minWindow = 4 << 10
	// maxWindow bounds the window that a peer can request.
	maxWindow = 4 << 20
	// silentTicks is how many intervals without a frame end a connection.
	silentTicks = 3
)

// Options of a Listener or a Dialer. The zero value means the defaults.
type Options struct {
	Prefix          string // of all subjects; both sides must have the same; default DefaultPrefix
	MaxMessageBytes int64  // of one received message; default transport.DefaultMaxMessageBytes

	// Instance distinguishes this machine from others that may claim its name; see
	// Call.Instance. It must be a ValidName; default is a random one. A Dialer has none.
	Instance string

	// Window bounds the bytes of messages in flight to this side, or waiting to be read, for
	// each connection: from 4 KiB to 4 MiB; default DefaultWindow.
	Window int64

	// Interval is the time between keepalives on an idle connection. A connection ends after
	// three intervals without a frame from the peer, so both sides need similar intervals;
	// default DefaultInterval.
	Interval time.Duration

	// Lost, if not nil, is called when the NATS connection has lost frames or is closed, with
	// the number of connections that ended because of it. It must not block.
	Lost func(connections int)
}

func (o *Options) withDefaults() Options {
	var result Options
	if o != nil {
		result = *o
	}
	if result.Prefix == "" {
		result.Prefix = DefaultPrefix
	}
	if result.MaxMessageBytes <= 0 {
		result.MaxMessageBytes = transport.DefaultMaxMessageBytes
	}
	if result.Window <= 0 {
		result.Window = DefaultWindow
	}
	result.Window = min(max(result.Window, minWindow), maxWindow)
	if result.Interval <= 0 {
		result.Interval = DefaultInterval
	}
	return result
}

// endpoint holds the connections of one side over a NATS connection.
type endpoint struct {
	nc     *nats.Conn
	opts   Options
	status chan nats.Status
	done   chan struct{}
	loop   sync.WaitGroup // of tick

	mu      sync.Mutex
	conns   map[string]*Conn
	subs    []*nats.Subscription
	stopped bool
	work    sync.WaitGroup // frames that say the end of a connection
}

func newEndpoint(nc *nats.Conn, opts *Options) *endpoint {
	e := &endpoint{nc: nc, opts: opts.withDefaults(), done: make(chan struct{}), conns: make(map[string]*Conn)}
	e.status = nc.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	e.loop.Go(e.tick)
	return e
}

// subscribe adds a subscription, whose messages one goroutine handles in order.
func (e *endpoint) subscribe(subject string, handle nats.MsgHandler) error {
	sub, err := e.nc.Subscribe(subject, plain(handle))
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.subs = append(e.subs, sub)
	return nil
}

// plain makes handle ignore messages with headers. JetStream can be asked to send stored
// messages to any subject, with headers; they must not be mistaken for frames of a peer.
func plain(handle nats.MsgHandler) nats.MsgHandler {
	return func(m *nats.Msg) {
		if m.Header == nil {
			handle(m)
		}
	}
}

// key returns the key of a connection from the subject of a frame: the last two tokens.
func key(subject string) string {
	dialer := strings.LastIndexByte(subject, '.')
	if dialer > 0 {
		dialer = strings.LastIndexByte(subject[:dialer], '.')
	}
	return subject[dialer+1:]
}

// add adds a connection.
func (e *endpoint) add(c *Conn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return transport.ErrClosed
	}
	if e.conns[c.key] != nil {
		return fmt.Errorf("there is a connection %s already", c.key)
	}
	e.conns[c.key] = c
	select {
	case <-c.done: // a frame has already ended it
		delete(e.conns, c.key)
	default:
	}
	return nil
}

func (e *endpoint) remove(c *Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conns[c.key] == c {
		delete(e.conns, c.key)
	}
}

// all returns the connections.
func (e *endpoint) all() []*Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]*Conn, 0, len(e.conns))
	for _, c := range e.conns {
		all = append(all, c)
	}
	return all
}

// start runs f on a goroutine for which stop waits. It returns false after stop was called.
func (e *endpoint) start(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.stopped {
		e.work.Go(f)
	}
	return !e.stopped
}

// tick sends keepalives, and ends connections whose peer is silent or whose frames may have
// been lost with the NATS connection.
func (e *endpoint) tick() {
	ticker := time.NewTicker(e.opts.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-e.done:
			return
		case _, ok := <-e.status:
			if !ok {
				return
			}
			e.lose()
		case <-ticker.C:
			for _, c := range e.all() {
				c.tick()
			}
		}
	}
}

// lose ends all connections.
func (e *endpoint) lose() {
	all := e.all()
	for _, c := range all {
		c.fail(fmt.Errorf("%w: the connection to NATS was lost", ErrLost))
	}
	if e.opts.Lost != nil && len(all) > 0 {
		e.opts.Lost(len(all))
	}
}

// tick sends a keepalive unless a frame was sent in the last interval, and counts the intervals
// without a frame from the peer.
func (c *Conn) tick() {
	c.mu.Lock()
	c.silent++
	lost := c.silent > silentTicks
	c.mu.Unlock()
	if lost {
		c.fail(ErrLost)
		return
	}
	if !c.sendMu.TryLock() {
		return // a frame is being sent
	}
	defer c.sendMu.Unlock()
	if spoke := c.spoke; !spoke && c.ended() == nil {
		_ = c.publish(frameAlive, make([]byte, headBytes)) // a failure ends the connection
	}
	c.spoke = false
}

// closeAll closes all connections concurrently, because each may take some time.
func (e *endpoint) closeAll(reason transport.Reason) {
	var closing sync.WaitGroup
	for _, c := range e.all() {
		closing.Go(func() { _ = c.Close(reason) })
	}
	closing.Wait()
}

// stop closes the connections and waits for the goroutines. It does not close the NATS
// connection.
func (e *endpoint) stop(reason transport.Reason) {
	e.closeAll(reason)
	e.mu.Lock()
	stopped := e.stopped
	e.stopped = true
	subs := e.subs
	e.mu.Unlock()
	if stopped {
		return
	}
	for _, sub := range subs {
		_ = sub.Unsubscribe() // fails only if the connection to NATS is gone
	}
	e.closeAll(reason) // those opened meanwhile
	close(e.done)
	e.nc.RemoveStatusListener(e.status)
	e.loop.Wait()
	e.work.Wait()
	if e.nc.IsConnected() {
		_ = e.nc.FlushTimeout(closeTimeout) // from here on NATS delivers nothing more
	}
}
