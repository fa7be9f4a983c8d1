package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"execserver/transport"
)

// Dial connects to the server at rawURL, which is ws://HOST:PORT, wss://HOST:PORT or unix:///PATH
// (PROTOCOL.md, "Transport"). ctx limits only connecting and the handshake, not the lifetime of the
// Environment. The error is a *DialError, or another error if opts is invalid.
//
// When the connection breaks, the Environment reconnects and resumes its session.
func Dial(ctx context.Context, rawURL string, opts *Options) (*Environment, error) {
	e := newEnvironment(opts.withDefaults())
	if err := checkToken(e.opts); err != nil {
		return nil, err
	}
	dial := func(ctx context.Context) (transport.Conn, error) {
		header, err := e.opts.authorization()
		if err != nil {
			return nil, err
		}
		return transport.Dial(ctx, rawURL, &transport.DialOptions{Header: header, TLS: e.opts.TLS, ServerUser: e.opts.ServerUser})
	}
	return e.open(ctx, &connManager{name: redact(rawURL), dial: dial, resumes: true})
}

// Connect is like [Dial], but obtains its connections from dial, for example through an SSH tunnel.
// It calls dial immediately, and again whenever a connection has broken, to resume the session. The
// server must keep the session meanwhile, as ServeConn and ServeUnix of package server do.
//
// Only one call of dial runs at a time. Options.ConnectTimeout limits the context passed to dial,
// which must return soon after the context is done. The connection must not depend on that context,
// which is cancelled when dial has returned. The Environment closes each connection.
//
// If dial fails while the Environment recovers, the Environment calls it again after a pause, until
// Options.RecoveryTimeout has passed. It gives up if the error is a *transport.RefusedError whose
// status is not 408, 429 or 5xx.
//
// ctx limits only the first connection and its handshake. The error is a *DialError, or another
// error if opts is invalid. Options.Token, TokenFile, TLS and ServerUser have no effect.
func Connect(ctx context.Context, dial func(context.Context) (transport.Conn, error), opts *Options) (*Environment, error) {
	e := newEnvironment(opts.withDefaults())
	checked := func(ctx context.Context) (transport.Conn, error) {
		conn, err := dial(ctx)
		if conn == nil && err == nil {
			err = errors.New("the dial function returned neither a connection nor an error")
		}
		return conn, err
	}
	return e.open(ctx, &connManager{dial: checked, resumes: true})
}

// New returns an Environment that uses conn, such as a pipe to a server. transport.NewStream makes a
// Conn from a stream of bytes. New performs the handshake, which ctx limits. The Environment owns
// conn and closes it, even if New fails. It cannot reconnect; [Connect] can. The error is a
// *DialError, or another error if opts is invalid. The options about connecting, recovery and
// credentials have no effect.
func New(ctx context.Context, conn transport.Conn, opts *Options) (*Environment, error) {
	e := newEnvironment(opts.withDefaults())
	dial := func(context.Context) (transport.Conn, error) { return conn, nil }
	return e.open(ctx, &connManager{dial: dial})
}

func checkToken(o Options) error {
	if o.Token != "" && o.TokenFile != "" {
		return errors.New("client: Options.Token and Options.TokenFile are both set")
	}
	if strings.ContainsAny(o.Token, "\r\n\x00") {
		return errors.New("the token has control characters")
	}
	return nil
}

// authorization returns the headers of an upgrade.
func (o *Options) authorization() (http.Header, error) {
	token := o.Token
	if o.TokenFile != "" {
		text, err := os.ReadFile(o.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("read the bearer token: %w", err)
		}
		if token = strings.TrimSpace(string(text)); token == "" {
			return nil, fmt.Errorf("read the bearer token: %s is empty", o.TokenFile)
		}
	}
	if token == "" {
		return nil, nil
	}
	return http.Header{"Authorization": {"Bearer " + token}}, nil
}

// redact removes the parts of a URL that may be secret: the query and the user.
func redact(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "with an invalid URL"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}
