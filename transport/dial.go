package transport

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"

	"execserver/internal/peer"
)

// DialOptions configure Dial. The zero value means the defaults.
type DialOptions struct {
	Header          http.Header // sent with the upgrade of a WebSocket
	TLS             *tls.Config // for wss; nil uses the system's roots
	MaxMessageBytes int64       // of one received message; default DefaultMaxMessageBytes

	// ServerUser is the name or the number of a user who may have secrets in clear: Header,
	// and what the URL has for the server alone. On this machine Dial sends them only if this
	// program's user, root or ServerUser has accepted the connection. Only Linux says who has.
	ServerUser string
}

// RefusedError says that a server refused the upgrade, or a proxy the way to the server.
type RefusedError struct {
	Status int    // of HTTP
	Text   string // the response, at most 1 KiB
	Proxy  string // the proxy that refused; "" if the server did
}

func (e *RefusedError) Error() string {
	who := "the server refused the upgrade"
	if e.Proxy != "" {
		who = fmt.Sprintf("the proxy %s refused to connect to the server", e.Proxy)
	}
	text := fmt.Sprintf("%s with status %d %s", who, e.Status, http.StatusText(e.Status))
	if e.Text != "" && !strings.HasPrefix(e.Text, "<") { // a web page is no help in an error
		text += ": " + e.Text
	}
	return text
}

// Dial connects to a server: ws://HOST:PORT, wss://HOST:PORT, whose path and query it
// sends unchanged, or unix:///PATH. ctx bounds only the dialing. The error is a
// *RefusedError if a server refused the upgrade, or a proxy of the environment (HTTP_PROXY,
// HTTPS_PROXY, NO_PROXY) the way there.
func Dial(ctx context.Context, rawURL string, opts *DialOptions) (Conn, error) {
	var o DialOptions
	if opts != nil {
		o = *opts
	}
	scheme, rest, _ := strings.Cut(rawURL, "://")
	switch scheme {
	case "ws", "wss":
		return dialWebSocket(ctx, rawURL, o)
	case "unix":
		conn, err := new(net.Dialer).DialContext(ctx, "unix", rest)
		if err != nil {
			return nil, bare(err)
		}
		return NewUnix(conn, o.MaxMessageBytes), nil
	}
	return nil, fmt.Errorf("unsupported URL %q; expected ws://HOST:PORT, wss://HOST:PORT or unix:///PATH", rawURL)
}

func dialWebSocket(ctx context.Context, rawURL string, o DialOptions) (*webSocket, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	u.Scheme = "http" + strings.TrimPrefix(u.Scheme, "ws")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The connection leaves package http, which reports it only to a trace.
	var conn net.Conn
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			conn = info.Conn
			if quiet, ok := conn.(*writtenFirst); ok {
				conn = quiet.Conn
			}
		},
	})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails
	key := base64.StdEncoding.EncodeToString(nonce[:])
	if o.Header != nil {
		request.Header = o.Header.Clone()
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "websocket")
	request.Header.Set("Sec-WebSocket-Version", "13")
	request.Header.Set("Sec-WebSocket-Key", key)
	tunnel, err := tunnelFor(request)
	if err != nil {
		return nil, err
	}
	proxy, dial := http.ProxyFromEnvironment, dialWrittenFirst
	switch through, err := proxy(request); {
	case tunnel != nil:
		proxy, dial = nil, tunnel
	case err == nil && through == nil && o.inClear(u): // a proxy is no server
		dial = o.dialChecked
	}
	keep := func() bool { return true }
	client := &http.Transport{
		Proxy: proxy,
		// Package http would go on with the dial, and with the handshake of TLS, after the end of
		// ctx, and keep the connection for later requests, which never come.
		DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err == nil {
				keep = context.AfterFunc(ctx, func() { _ = conn.Close() })
			}
			return conn, err
		},
		TLSClientConfig:        o.TLS,
		MaxResponseHeaderBytes: 64 << 10,
	}
	response, err := client.RoundTrip(request)
	if err != nil {
		if ctx.Err() != nil { // which may have closed the connection first
			err = context.Cause(ctx)
		}
		return nil, bare(err)
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		defer client.CloseIdleConnections()
		defer response.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return nil, &RefusedError{Status: response.StatusCode, Text: strings.TrimSpace(string(text))}
	}
	if err := checkAccepted(response, key); err != nil {
		_ = response.Body.Close()
		return nil, err
	}
	if !keep() {
		_ = response.Body.Close()
		return nil, context.Cause(ctx)
	}
	return newWebSocket(conn, bufio.NewReaderSize(response.Body, 16<<10), true, u.Host, o.MaxMessageBytes), nil
}

// writtenFirst is a connection that reads nothing before something is written to it. A server
// for SSH, and others, speak first; what is there before the request package http takes for a
// fault of its own, and does not say what it was.
type writtenFirst struct {
	net.Conn
	once sync.Once
	open chan struct{} // closed by the first Write, and by Close
}

func dialWrittenFirst(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return newWrittenFirst(conn), nil
}

func newWrittenFirst(conn net.Conn) *writtenFirst {
	return &writtenFirst{Conn: conn, open: make(chan struct{})}
}

// inClear reports whether a request has secrets that whoever accepts the connection could read.
func (o *DialOptions) inClear(u *url.URL) bool {
	proven := u.Scheme == "https" && (o.TLS == nil || !o.TLS.InsecureSkipVerify || o.TLS.VerifyConnection != nil || o.TLS.VerifyPeerCertificate != nil)
	return !proven && (len(o.Header) > 0 || u.User != nil || u.Query().Has("token"))
}

// dialChecked checks who has accepted the connection before anything is sent.
func (o *DialOptions) dialChecked(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := peer.DialServer(ctx, new(net.Dialer), network, address, o.ServerUser)
	if err != nil {
		return nil, err
	}
	return newWrittenFirst(conn), nil
}

func (c *writtenFirst) begin() { c.once.Do(func() { close(c.open) }) }

// Read implements net.Conn. A deadline is not heeded before the first Write.
func (c *writtenFirst) Read(b []byte) (int, error) {
	<-c.open
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c *writtenFirst) Write(b []byte) (int, error) {
	c.begin()
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *writtenFirst) Close() error {
	c.begin()
	return c.Conn.Close()
}

// bare strips the address that package net puts around an error, because the caller's
// text has it.
func bare(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	return err
}

// checkAccepted checks that the server has understood the upgrade (RFC 6455 section 4.1).
func checkAccepted(response *http.Response, key string) error {
	h := response.Header
	switch {
	case !hasToken(h, "Connection", "upgrade"), !hasToken(h, "Upgrade", "websocket"):
		return fmt.Errorf("the server switched to %q, not to websocket", h.Get("Upgrade"))
	case h.Get("Sec-WebSocket-Accept") != acceptKey(key):
		return fmt.Errorf("the server's Sec-WebSocket-Accept does not answer our key")
	case h.Get("Sec-WebSocket-Extensions") != "":
		return fmt.Errorf("the server chose extensions %q that nobody offered", h.Get("Sec-WebSocket-Extensions"))
	}
	return nil
}
