package natstransport

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"execserver/transport"
)

// Dialer opens connections to machines. Its methods may be called concurrently.
type Dialer struct {
	*endpoint
	id string
}

// NewDialer returns a Dialer over a connection to NATS, which stays the caller's.
func NewDialer(nc *nats.Conn, opts *Options) *Dialer {
	return &Dialer{endpoint: newEndpoint(nc, opts), id: rand.Text()}
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
	c := newConn(d.endpoint, key, "", name, nil)
	if err := d.listen(c, name); err != nil {
		return nil, err
	}
	answer, err := d.request(ctx, name, openRequest{version, key, d.opts.Window, call})
	if err != nil {
		c.finish(err)
		return nil, err
	}
	c.address(d.opts.Prefix + ".in." + name + "." + answer.Instance + "." + key)
	c.open(answer.Window)
	if err := d.add(c); err != nil {
		c.fail(err)
		return nil, err
	}
	return c, nil
}

// maxPending bounds the frames that NATS has received for a connection, and that wait until
// receive has taken them, which does not block.
const maxPending = 16 << 10

// listen subscribes to the frames of a connection. Each has a subscription of its own, so
// that a machine which floods loses its own frames and nobody else's.
func (d *Dialer) listen(c *Conn, name string) (err error) {
	subject := d.opts.Prefix + ".out." + name + "." + c.key
	c.sub, err = d.nc.Subscribe(subject, plain(func(m *nats.Msg) { c.receive(m.Data) }))
	if err == nil {
		err = c.sub.SetPendingLimits(maxPending, 2*int(d.opts.Window))
	}
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	return nil
}

// request asks a machine for a connection.
func (d *Dialer) request(ctx context.Context, name string, request openRequest) (*openAnswer, error) {
	text, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	m, err := d.nc.RequestWithContext(ctx, d.opts.Prefix+".open."+name, text)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, ErrNoMachine
	}
	if err != nil {
		return nil, fmt.Errorf("ask the machine %s for a connection: %w", name, err)
	}
	answer := new(openAnswer)
	if err := json.Unmarshal(m.Data, answer); err != nil {
		return nil, fmt.Errorf("ask the machine %s for a connection: %w", name, err)
	}
	switch {
	case answer.Refusal != "":
		return nil, &RefusedError{answer.Refusal}
	case answer.Version != version:
		return nil, fmt.Errorf("the machine %s speaks version %d of the transport, and this program speaks %d", name, answer.Version, version)
	case answer.Window < minWindow || !ValidName(answer.Instance) || request.Instance != "" && request.Instance != answer.Instance:
		return nil, fmt.Errorf("ask the machine %s for a connection: its answer is invalid", name)
	}
	return answer, nil
}

// Close ends the connections of the Dialer.
func (d *Dialer) Close() {
	d.stop(transport.Reason{Code: transport.CodeGoingAway, Text: "the gateway shuts down"})
}
