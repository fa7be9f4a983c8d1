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

// Dial connects to a server that listens: ws://HOST:PORT, wss://HOST:PORT, or
// unix:///PATH (PROTOCOL.md, "Transports" and "Handshake"). ctx bounds the connecting, not
// the Environment. The error is a *DialError, or another error if opts are not valid.
//
// When the connection breaks, the Environment connects again and resumes its session.
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
	return e.open(ctx, &link{env: e, name: redact(rawURL), dial: dial, resumes: true})
}

// Connect is like [Dial], over connections that dial makes: through a tunnel of SSH, for
// example. It calls dial at once, and again whenever a connection has ended, to resume the
// session over the next one. The server must keep the session meanwhile, as
// Server.ServeConn and Server.ServeUnix do.
//
// Only one call of dial runs at a time. dial must return soon after its context has
// ended, which Options.ConnectTimeout bounds. A connection must outlive this context. The
// Environment owns each connection and closes it. If dial fails while the Environment
// recovers, the Environment calls it again after a pause, until Options.RecoveryTimeout
// has passed. It gives up at once if the error is a *transport.RefusedError with a status
// that another attempt would not change.
//
// ctx bounds the first connecting, not the Environment. The error is a *DialError.
// Options.Token, TokenFile and TLS have no effect.
func Connect(ctx context.Context, dial func(context.Context) (transport.Conn, error), opts *Options) (*Environment, error) {
	e := newEnvironment(opts.withDefaults())
	checked := func(ctx context.Context) (transport.Conn, error) {
		conn, err := dial(ctx)
		if conn == nil && err == nil {
			err = errors.New("the dial function returned neither a connection nor an error")
		}
		return conn, err
	}
	return e.open(ctx, &link{env: e, dial: checked, resumes: true})
}

// New returns an Environment over one connection to a server: a pair of pipes, or anything
// else that carries the protocol's messages. transport.NewStream makes a Conn from a
// stream of bytes. ctx bounds the handshake. The Environment owns the connection and
// closes it, also if New fails. It cannot reconnect: when the connection ends, everything
// in the Environment fails with a *DisconnectedError. [Connect] can. The error of New is a
// *DialError. Options about connecting, recovery and credentials have no effect.
func New(ctx context.Context, conn transport.Conn, opts *Options) (*Environment, error) {
	e := newEnvironment(opts.withDefaults())
	dial := func(context.Context) (transport.Conn, error) { return conn, nil }
	return e.open(ctx, &link{env: e, dial: dial})
}

// open gives the Environment its link.
func (e *Environment) open(ctx context.Context, l *link) (*Environment, error) {
	e.link = l
	if err := l.inherit(&e.opts); err != nil {
		return nil, err
	}
	if err := l.open(ctx); err != nil {
		e.cancel(err)
		return nil, err
	}
	return e, nil
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
