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
// unix:///PATH. ctx bounds the dialing, not the Environment. The error is a
// *DialError.
func Dial(ctx context.Context, rawURL string, opts *Options) (*Environment, error) {
	e := newEnvironment(opts.withDefaults())
	if err := checkToken(e.opts); err != nil {
		return nil, err
	}
	l := &link{env: e, name: redact(rawURL), resumes: true}
	l.dial = func(ctx context.Context) (transport.Conn, error) {
		header, err := e.opts.authorization()
		if err != nil {
			return nil, err
		}
		return transport.Dial(ctx, rawURL, &transport.DialOptions{Header: header, TLS: e.opts.TLS})
	}
	return e.open(ctx, l)
}

// open makes the Environment that of a link.
func (e *Environment) open(ctx context.Context, l *link) (*Environment, error) {
	e.back = l
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
		return errors.New("invalid value for exec-server WebSocket header `authorization`")
	}
	return nil
}

// authorization makes the headers of an upgrade.
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

// redact leaves out what may be secret in a URL: the query and the user.
func redact(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "with an invalid URL"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}
