// Package httprequest sends HTTP requests exactly as a peer describes them. It adds,
// decompresses, caches and remembers nothing, and it knows no RPC.
//
// Start at [Client.Do]. PROTOCOL.md, "HTTP requests", says what a description may hold,
// and how the package treats redirects, proxies and certificates.
package httprequest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Limits of one Client, for all its targets together.
const (
	maxConns       = 1024 // network connections, with those being made
	maxIdleConns   = 64
	maxIdlePerHost = 16
	maxHeaderBytes = 512 << 10        // of a response
	maxWindow      = 256 << 10        // unread bytes of an HTTP/2 stream
	connectTimeout = 60 * time.Second // net/http continues to dial after a request has ended
	idleTimeout    = 60 * time.Second
	maxRedirects   = 10
)

// Client sends requests and keeps connections for further ones. Its methods may be called
// concurrently.
type Client struct {
	transport *http.Transport
	proxies   proxies
	check     Check
	conns     atomic.Int64
}

// Check decides about a network connection before it is made. address has an IP address and
// a port.
type Check func(ctx context.Context, network, address string, _ syscall.RawConn) error

// NewClient returns a client that takes its proxies and trusted certificates from the
// present environment of this process. check, if not nil, may refuse network connections,
// but not those to the proxies.
func NewClient(check Check) (*Client, error) {
	roots, err := rootCertificates()
	if err != nil {
		return nil, err
	}
	c := &Client{proxies: proxiesOfEnvironment(), check: check}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	c.transport = &http.Transport{
		Proxy:                  func(r *http.Request) (*url.URL, error) { return c.proxies.of(r.URL) },
		ProxyConnectHeader:     http.Header{"User-Agent": nil},
		DialContext:            c.dial,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    connectTimeout,
		DisableCompression:     true,
		MaxIdleConns:           maxIdleConns,
		MaxIdleConnsPerHost:    maxIdlePerHost,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
		Protocols:              protocols,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerStream: maxWindow},
	}
	return c, nil
}

// Close closes the connections that no request uses. A request ends with its context, or
// when its response body is closed.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// SendError says that a request got no response.
type SendError struct {
	URL string // without user and password
	Err error
}

func (e *SendError) Error() string {
	return fmt.Sprintf("request to %s: %s", shorten(e.URL), shorten(e.Err.Error()))
}

func (e *SendError) Unwrap() error { return e.Err }

// Do sends a request and returns its response when the header has arrived. The caller
// must close the body. ctx bounds the whole exchange, with reading the body; when it
// ends, its cause becomes the error. The error is an *InvalidError for a request that was
// not sent because its description is invalid.
func (c *Client) Do(ctx context.Context, r *Request) (*Response, error) {
	request, err := r.build()
	if err != nil {
		return nil, err
	}
	for hops := 0; ; hops++ {
		response, err := c.send(ctx, request)
		if err != nil {
			return nil, err
		}
		var next *http.Request
		if r.FollowRedirects {
			next, err = r.follow(request, response)
		}
		if next == nil && err == nil {
			return newResponse(ctx, response), nil
		}
		_ = response.Body.Close()
		if err == nil && hops == maxRedirects {
			err = errors.New("too many redirects")
		}
		if err == nil && r.Redirected != nil {
			err = r.Redirected(next.Method, next.URL.String())
		}
		if err != nil {
			return nil, err
		}
		request = next
	}
}

// send sends one request.
func (c *Client) send(ctx context.Context, request *http.Request) (*http.Response, error) {
	request = request.WithContext(ctx)
	target := request.URL
	if proxy, _ := c.proxies.of(target); proxy != nil && request.Host != "" && target.Scheme == "http" {
		// A proxy must learn the target, but net/http would use the host header.
		opaque := *target
		opaque.Opaque = "//" + target.Host + target.EscapedPath()
		request.URL = &opaque
	}
	response, err := c.transport.RoundTrip(request)
	if err == nil {
		return response, nil
	}
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, io.EOF):
		err = errors.New("the server closed the connection without an answer")
	}
	return nil, &SendError{URL: target.String(), Err: err}
}

// dial makes a network connection, if the client does not have too many.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	done := sync.OnceFunc(func() { c.conns.Add(-1) })
	if n := c.conns.Add(1); n > maxConns {
		done()
		return nil, fmt.Errorf("connect to %s: %d network connections are open already, the limit", address, maxConns)
	}
	dialer := net.Dialer{Timeout: connectTimeout}
	if !c.proxies.at(address) {
		dialer.ControlContext = c.check
	}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		done()
		return nil, err
	}
	return &countedConn{conn, done}, nil
}

// countedConn is a connection that is counted until it is closed.
type countedConn struct {
	net.Conn
	done func()
}

func (c *countedConn) Close() error {
	c.done()
	return c.Conn.Close()
}
