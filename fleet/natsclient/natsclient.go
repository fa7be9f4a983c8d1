// Package natsclient makes an Environment of package client from a machine that has joined a
// fleet, through NATS servers and without a gateway. Start with [Dial].
//
// The machine trusts such a client as it trusts a gateway: any client that NATS permits to
// request a connection may do everything on the machine, and chooses its own name. NATS
// decides which clients may (docs/fleet.md). It is a package of its own so that package client
// does not need the client library of NATS.
package natsclient

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/user"
	"strings"

	"github.com/nats-io/nats.go"

	"execserver/client"
	"execserver/fleet/natstransport"
	"execserver/internal/auth"
	"execserver/transport"
)

// Options say how a client signs in to NATS, and who it is. Nil and the zero value mean the
// defaults.
type Options struct {
	// NATS has options of the client library of NATS, such as nats.UserCredentials. Those
	// about reconnecting have no effect: the Environment connects again itself.
	NATS []nats.Option

	// Principal is the name under which the machine has the sessions of this client, and
	// under which its audit log records what the client does. Clients of the same name share
	// their sessions. The default is "nats:" and the name of the user of this program.
	Principal string

	// ServerUser is the name or the number of a user who may have the credentials in clear,
	// besides the user of this program and root, if NATS is on this machine (Linux).
	ServerUser string
}

// Dial connects to the machine NAME through a NATS server: nats://HOST:PORT/NAME,
// tls://HOST:PORT/NAME, or over WebSocket nats+ws://HOST:PORT/NAME and
// nats+wss://HOST:PORT/NAME, because ws:// and wss:// are the URLs of exec-servers. The port
// may be left out. The URL has no user and no password; Options.NATS has them.
//
// When the connection breaks, the Environment connects again and resumes its session, also
// through another server of the cluster if the first one has named it. ctx bounds only the
// attempt to connect, not the lifetime of the Environment. The error is a *client.DialError,
// which matches natstransport.ErrNoMachine if there is no such machine, ErrRefused if NATS
// refuses the credentials and ErrUnreachable if there is no NATS, or another error if the URL
// is not valid. Token, TokenFile and TLS of opts have no effect.
func Dial(ctx context.Context, rawURL string, nats *Options, opts *client.Options) (*client.Environment, error) {
	server, name, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if nats == nil {
		nats = new(Options)
	}
	w := &way{url: rawURL, name: name, servers: []string{server}, opts: nats.NATS, principal: nats.principal(), serverUser: nats.ServerUser}
	env, err := client.Connect(ctx, w.dial, opts)
	if failed, ok := errors.AsType[*client.DialError](err); ok && failed.URL == "" {
		failed.URL = rawURL
	}
	return env, err
}

// schemes has the schemes of URLs for Dial, and what NATS calls them.
var schemes = map[string]string{"nats": "nats", "tls": "tls", "nats+ws": "ws", "nats+wss": "wss"}

// ParseURL returns the NATS server in a URL for [Dial], and the name of the machine. The error
// has no part of the URL that may be secret.
func ParseURL(rawURL string) (server, name string, err error) {
	const expected = "nats://HOST:PORT/NAME, tls://HOST:PORT/NAME or nats+wss://HOST:PORT/NAME"
	u, err := url.Parse(rawURL)
	switch {
	case err != nil || schemes[u.Scheme] == "" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "":
		return "", "", errors.New("invalid URL of a machine behind NATS: expected " + expected)
	case u.User != nil:
		return "", "", errors.New("the URL of a machine behind NATS must not have a user, a token or a password, which every process here could read; use a file")
	}
	name = strings.Trim(u.Path, "/")
	switch {
	case name == "":
		return "", "", fmt.Errorf("the URL names no machine: expected its name at the end, %s://%s/NAME", u.Scheme, u.Host)
	case !natstransport.ValidName(name):
		return "", "", fmt.Errorf("the URL names the machine %q: expected 1 to 64 of the characters A-Z a-z 0-9 _ -", name)
	}
	return schemes[u.Scheme] + "://" + u.Host, name, nil
}

func (o *Options) principal() string {
	if o.Principal != "" {
		return o.Principal
	}
	if u, err := user.Current(); err == nil {
		return "nats:" + u.Username
	}
	return "nats"
}

// ErrRefused says that NATS refuses the credentials of the client, or that they do not allow
// it to reach the machine.
var ErrRefused = errors.New("NATS refuses these credentials")

// ErrUnreachable says that there is no connection to NATS.
var ErrUnreachable = errors.New("cannot connect to NATS")

// way is the way to a machine.
type way struct {
	url       string
	name      string // of the machine
	servers   []string
	opts      []nats.Option
	principal string

	serverUser string
}

// dial makes a connection to the machine, with a connection to NATS of its own: both end
// together, and client.Connect makes both again.
func (w *way) dial(ctx context.Context) (transport.Conn, error) {
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	nc, err := w.connect(ctx, refuse)
	if err != nil {
		return nil, err
	}
	dialer := natstransport.NewDialer(nc, nil)
	c, err := w.open(ctx, dialer)
	// The machine may answer before refuse was called.
	if last := nc.LastError(); err == nil && errors.Is(last, nats.ErrPermissionViolation) {
		err = refused(last)
	}
	if err != nil {
		dialer.Close()
		nc.Close()
		return nil, err
	}
	return &conn{c, w.url, dialer, nc}, nil
}

// open asks the machine for a connection.
func (w *way) open(ctx context.Context, dialer *natstransport.Dialer) (*natstransport.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, errSilent)
	defer cancel()
	assertion := (&auth.Principal{Name: w.principal}).Assertion() // allows everything, as that of a gateway's own user
	call := natstransport.Call{Remote: w.principal, Hello: assertion}
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		c, err := dialer.Dial(attempt, w.name, call)
		cancel()
		switch {
		case err == nil:
			return c, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !errors.Is(err, context.DeadlineExceeded):
			return nil, err
		}
		// The request went the way of a NATS server that has just gone.
	}
}

// conn is a connection to a machine whose Close also ends its connection to NATS.
type conn struct {
	*natstransport.Conn
	url    string
	dialer *natstransport.Dialer
	nc     *nats.Conn
}

// Remote implements transport.Conn.
func (c *conn) Remote() string { return c.url }

// Close implements transport.Conn.
func (c *conn) Close(reason transport.Reason) error {
	err := c.Conn.Close(reason)
	c.dialer.Close() // waits until NATS has the reason
	c.nc.Close()
	return err
}
