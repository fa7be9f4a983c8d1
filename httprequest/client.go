// Package httprequest sends HTTP requests for somebody who describes them: as
// they are described, with nothing added, decompressed, cached or remembered.
// It knows no RPC.
//
// Start at [Client.Do]. What a description may hold, and how redirects, proxies
// and certificates are dealt with, is written in PROTOCOL.md, "HTTP requests".
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
	"time"
)

// Bounds of what one Client may hold, whoever it talks to.
const (
	maxConns       = 1024 // network connections, those being made included
	maxIdleConns   = 64
	maxIdlePerHost = 16
	maxHeaderBytes = 512 << 10        // of a response
	maxWindow      = 256 << 10        // bytes of an HTTP/2 stream that nobody has read yet
	connectTimeout = 60 * time.Second // net/http goes on dialing when a request has ended
	idleTimeout    = 60 * time.Second
	maxRedirects   = 10
)

// Client sends requests and keeps connections for further ones. Its methods
// may be called concurrently.
type Client struct {
	transport *http.Transport
	proxies   proxies
	conns     atomic.Int64
}

// NewClient makes a client that follows the environment of this process, as it
// is now, in the choice of proxies and in whose certificates it trusts.
func NewClient() (*Client, error) {
	roots, err := rootCertificates()
	if err != nil {
		return nil, err
	}
	c := &Client{proxies: proxiesOfEnvironment()}
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

// Close closes the connections that no request uses. Requests end with their
// contexts and their bodies.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// SendError says that a request got no response.
type SendError struct {
	URL string // without user and password
	Err error
}

func (e *SendError) Error() string {
	return fmt.Sprintf("error sending request for url (%s): %s", shorten(e.URL), shorten(e.Err.Error()))
}

func (e *SendError) Unwrap() error { return e.Err }

// Do sends a request and returns its response when the header has come; the
// caller closes the body. ctx bounds the whole exchange, reading the body
// included; when it ends, its cause becomes the error. The error is an
// *InvalidError for a request that was not sent because of what it says.
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
		// A proxy must learn the target, which net/http would take from the
		// host header.
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

// dial makes a network connection, of which there are only so many.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	done := sync.OnceFunc(func() { c.conns.Add(-1) })
	if n := c.conns.Add(1); n > maxConns {
		done()
		return nil, fmt.Errorf("connect to %s: %d network connections are open already, the limit", address, maxConns)
	}
	conn, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, network, address)
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
