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
	"time"

	"execserver/internal/peer"
)

// DialOptions configure Dial. The zero value means the defaults.
type DialOptions struct {
	Header          http.Header // sent with the upgrade of a WebSocket
	TLS             *tls.Config // for wss; nil uses the system's roots
	MaxMessageBytes int64       // of one received message; default DefaultMaxMessageBytes

	// ServerUser is the name or the number of a user to whom Dial may send secrets without
	// TLS: Header, and credentials in the URL or in that of the proxy. On a connection to this
	// machine, be it to the server or to a proxy, Dial sends them only if the accepting process
	// belongs to this program's user, root or ServerUser. Only Linux reports the user.
	ServerUser string
}

// RefusedError reports that a server refused the upgrade, or a proxy the connection.
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
	if e.Text != "" && !strings.HasPrefix(e.Text, "<") { // not a web page
		text += ": " + e.Text
	}
	return text
}

// Dial connects to the server at a URL: ws://HOST:PORT or wss://HOST:PORT, whose path and query
// it sends unchanged, or unix:///PATH. It uses the proxy that the environment selects
// (HTTP_PROXY, HTTPS_PROXY, NO_PROXY). ctx bounds only the dialing. The error is a
// *RefusedError if the server refused the upgrade, or the proxy the connection.
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
	proxy, err := http.ProxyFromEnvironment(request)
	if err != nil {
		return nil, err
	}
	dial := new(net.Dialer).DialContext
	if o.inClear(u, proxy) {
		dial = o.dialChecked
	}
	if proxy != nil {
		dial = naming(proxy, dial)
	}
	// Package http would send the proxy the request itself, and few proxies pass an upgrade on.
	if proxy != nil && u.Scheme == "http" && (proxy.Scheme == "http" || proxy.Scheme == "https") {
		dial, proxy = through(proxy, dial), nil
	}
	keep := func() bool { return true }
	client := &http.Transport{
		Proxy: http.ProxyURL(proxy),
		// Package http would continue to dial, and the TLS handshake, after the end of ctx, and
		// keep the connection for later requests.
		DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
			raw, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			conn := &writtenFirst{Conn: raw, open: make(chan struct{})}
			keep = context.AfterFunc(ctx, func() { _ = conn.Close() })
			return conn, nil
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

// writtenFirst is a connection that does not read before the first write. Some servers, such
// as those of SSH, send first. Package http would report data that arrives before its request
// as an error of its own, without the data.
type writtenFirst struct {
	net.Conn
	once sync.Once
	open chan struct{} // closed by the first Write, and by Close
}

// inClear reports whether any program that accepts the connection, as the server or as its proxy,
// could read secrets: those of the request, or the proxy's password.
func (o *DialOptions) inClear(u, proxy *url.URL) bool {
	secret := !o.proves(u) && (len(o.Header) > 0 || u.User != nil || u.Query().Has("token"))
	if proxy == nil {
		return secret
	}
	return (secret || proxy.User != nil) && !o.proves(proxy)
}

// proves reports whether TLS proves who is at a URL.
func (o *DialOptions) proves(u *url.URL) bool {
	return u.Scheme == "https" && (o.TLS == nil || !o.TLS.InsecureSkipVerify || o.TLS.VerifyConnection != nil || o.TLS.VerifyPeerCertificate != nil)
}

// dialFunc is the type of net.Dialer.DialContext.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// dialChecked checks the user of the accepting process before it sends anything.
func (o *DialOptions) dialChecked(ctx context.Context, network, address string) (net.Conn, error) {
	return peer.DialServer(ctx, new(net.Dialer), network, address, o.ServerUser)
}

func (c *writtenFirst) begin() { c.once.Do(func() { close(c.open) }) }

// Read implements net.Conn. A deadline has no effect before the first Write.
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

// bare strips the address that package net adds to an error, because the caller adds it.
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
		return fmt.Errorf("the server chose extensions %q, which the client did not offer", h.Get("Sec-WebSocket-Extensions"))
	}
	return nil
}

// naming returns a dialer whose errors name the proxy that it connects to.
func naming(proxy *url.URL, dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, fmt.Errorf("connect to the proxy %s: %w", proxy.Host, bare(err))
		}
		return conn, nil
	}
}

// through returns a dialer that reaches its addresses through an HTTP proxy, with CONNECT. It
// connects to the proxy with dial.
func through(proxy *url.URL, dial dialFunc) dialFunc {
	port := proxy.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[proxy.Scheme]
	}
	at := net.JoinHostPort(proxy.Hostname(), port)
	if proxy.Scheme == "https" {
		dial = naming(proxy, new(tls.Dialer).DialContext)
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, at)
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		err = connectThrough(conn, proxy, address)
		if !stop() && err == nil { // the deadline may come at any moment
			err = context.Cause(ctx)
		}
		if err != nil {
			_ = conn.Close()
			return nil, err
		}
		return conn, nil
	}
}

// connectThrough asks a proxy to lead a connection to an address (RFC 9110 section 9.3.6).
func connectThrough(conn net.Conn, proxy *url.URL, address string) error {
	request := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if user := proxy.User; user != nil {
		password, _ := user.Password()
		basic := base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password))
		request.Header.Set("Proxy-Authorization", "Basic "+basic)
	}
	if err := request.Write(conn); err != nil {
		return fmt.Errorf("ask the proxy %s for %s: %w", proxy.Host, address, bare(err))
	}
	// What follows the response belongs to the server.
	response, err := http.ReadResponse(bufio.NewReader(byteReader{io.LimitReader(conn, 64<<10)}), request)
	if err != nil {
		return fmt.Errorf("ask the proxy %s for %s: %w", proxy.Host, address, bare(err))
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return &RefusedError{Status: response.StatusCode, Text: strings.TrimSpace(string(text)), Proxy: proxy.Host}
	}
	return nil
}

// byteReader reads single bytes, so that a buffer above it holds none too many.
type byteReader struct{ io.Reader }

func (r byteReader) Read(b []byte) (int, error) { return r.Reader.Read(b[:min(1, len(b))]) }
