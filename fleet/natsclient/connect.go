package natsclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/internal/peer"
)

// A machine has answerTimeout to accept a connection, in attempts of attemptTimeout.
const (
	answerTimeout  = 5 * time.Second
	attemptTimeout = time.Second
)

var errSilent = fmt.Errorf("the machine does not answer: %w", context.DeadlineExceeded)

// Bounds of a connection to NATS that the caller may replace.
const (
	connectTimeout = 5 * time.Second // for each server
	writeTimeout   = 5 * time.Second
)

// connect connects to the first NATS server that answers. refuse is called if NATS does not
// allow something later.
func (w *way) connect(ctx context.Context, refuse context.CancelCauseFunc) (*nats.Conn, error) {
	o := nats.GetDefaultOptions()
	o.Name, o.Timeout, o.FlusherTimeout = "exec-server client", connectTimeout, writeTimeout
	for _, option := range w.opts {
		if err := option(&o); err != nil {
			return nil, err
		}
	}
	o.Servers, o.NoRandomize = w.servers, true
	o.AllowReconnect, o.RetryOnFailedConnect = false, false // dial is called again
	w.secure(&o)
	d := &dialer{ctx: ctx, dial: (&net.Dialer{Timeout: o.Timeout}).DialContext}
	if w.inClear(&o) {
		d.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, o.Timeout)
			defer cancel()
			return peer.DialServer(ctx, new(net.Dialer), network, address, w.serverUser)
		}
	}
	defer d.release()
	if o.CustomDialer == nil {
		o.CustomDialer = d
	}
	report := o.AsyncErrorCB
	o.AsyncErrorCB = func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			refuse(refused(err))
		}
		if report != nil {
			report(nc, sub, err)
		}
	}
	nc, err := o.Connect()
	switch {
	case err == nil:
		w.remember(nc.Servers())
		return nc, nil
	case errors.Is(err, nats.ErrAuthorization):
		return nil, ErrRefused
	case errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
		return nil, refused(err)
	case errors.Is(err, nats.ErrNoServers) && d.err != nil:
		err = d.err // says why
	}
	return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// refused returns an error that matches ErrRefused.
func refused(err error) error {
	return fmt.Errorf("%w: %s", ErrRefused, strings.TrimPrefix(err.Error(), "nats: "))
}

// secure makes all servers show a certificate for the host of the URL: the others of the
// cluster have only been named by their addresses.
func (w *way) secure(o *nats.Options) {
	first, _ := url.Parse(w.servers[0]) // ParseURL has made it
	if first.Scheme == "ws" {
		return // a configuration would demand TLS
	}
	if o.TLSConfig == nil {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if o.TLSConfig.ServerName == "" {
		o.TLSConfig = o.TLSConfig.Clone()
		o.TLSConfig.ServerName = first.Hostname()
	}
}

// inClear reports whether NATS gets credentials without having shown who it is.
func (w *way) inClear(o *nats.Options) bool {
	first, _ := url.Parse(w.servers[0])
	proven := o.Secure && !o.TLSConfig.InsecureSkipVerify || first.Scheme == "tls" || first.Scheme == "wss"
	signsIn := o.User != "" || o.Password != "" || o.Token != "" || o.Nkey != "" || o.UserInfo != nil || o.TokenHandler != nil || o.UserJWT != nil
	return signsIn && !proven
}

// remember keeps the servers of the cluster that a server has named, for the next dial. The
// one of the URL stays the first. NATS takes no others beside those of WebSockets.
func (w *way) remember(known []string) {
	first := w.servers[0]
	w.servers = w.servers[:1:1]
	for _, server := range known {
		if server != first && strings.HasPrefix(server, "ws") == strings.HasPrefix(first, "ws") {
			w.servers = append(w.servers, server)
		}
	}
}

// dialer is a nats.CustomDialer whose connections end with a context until they are released.
type dialer struct {
	ctx   context.Context
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	stops []func() bool
	err   error // of the last Dial
}

// Dial implements nats.CustomDialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.dial(d.ctx, network, address)
	if err == nil {
		d.stops = append(d.stops, context.AfterFunc(d.ctx, func() { _ = conn.Close() }))
	}
	d.err = err
	return conn, err
}

func (d *dialer) release() {
	for _, stop := range d.stops {
		stop()
	}
}
