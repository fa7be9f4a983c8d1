// Package httprequest sends HTTP requests exactly as a peer describes them. It adds no
// headers, and does not decompress, cache or keep cookies. It is independent of RPC.
//
// Start at [Client.Do]. PROTOCOL.md, "HTTP requests", specifies the requests, and the
// treatment of redirects, proxies and certificates.
package httprequest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Limits of one Client, for all its targets together.
const (
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
	admit     Admit
}

// Check may refuse a network connection before it is made. address is an IP address and a
// port.
type Check func(ctx context.Context, network, address string, _ syscall.RawConn) error

// Admit counts one more network connection, or refuses it. The client calls release when the
// connection is closed.
type Admit func() (release func(), err error)

// NewClient returns a client that takes its proxies and trusted certificates from the current
// environment of this process. check, if not nil, may refuse network connections, but not
// those to the proxies. admit counts all of them.
func NewClient(check Check, admit Admit) (*Client, error) {
	roots, err := rootCertificates()
	if err != nil {
		return nil, err
	}
	c := &Client{proxies: proxiesFromEnvironment(), check: check, admit: admit}
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

// SendError reports that a request got no response.
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

// dial makes a network connection, if it is admitted.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	release, err := c.admit()
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	done := sync.OnceFunc(release)
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

// follow returns the request to which a response to last redirects, or nil if the
// response is final.
func (r *Request) follow(last *http.Request, response *http.Response) (*http.Request, error) {
	locations := response.Header["Location"]
	if !isRedirect(response.StatusCode) || len(locations) == 0 {
		return nil, nil
	}
	target, err := parseURL(locations[0], last.URL)
	if scheme, ok := err.(*schemeError); ok {
		return nil, fmt.Errorf("redirect target uses %w", scheme)
	}
	if err != nil {
		return nil, nil // it redirects nowhere, but is a response
	}
	target.User = nil // the server must not choose the user
	next := &http.Request{
		Method: last.Method, URL: target, Host: last.Host, Proto: last.Proto, ProtoMajor: last.ProtoMajor, ProtoMinor: last.ProtoMinor,
		Header: maps.Clone(last.Header),
	}
	if dropsBody(response.StatusCode, last.Method) {
		next.Method = http.MethodGet
		remove(next.Header, "content-type", "content-encoding")
	} else if last.ContentLength > 0 {
		setBody(next, r.Body)
	}
	if target.Scheme != last.URL.Scheme || target.Host != last.URL.Host {
		next.Host = ""
		remove(next.Header, "authorization", "cookie", "cookie2", "proxy-authorization", "www-authenticate")
		remove(next.Header, r.secretNames()...)
	}
	if referer := referer(last.URL, target); referer == "" {
		remove(next.Header, "referer")
	} else {
		next.Header["referer"] = []string{referer}
	}
	return next, nil
}

// secretNames returns the names of the headers whose values come from this process's
// environment. The client intended such a value for the origin that it named, not for one to
// which that origin redirects.
func (r *Request) secretNames() (names []string) {
	for _, h := range r.Headers {
		if h.ValueEnvVar != nil {
			names = append(names, strings.ToLower(h.Name))
		}
	}
	return names
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// dropsBody reports whether the request after a redirect is a GET without a body.
func dropsBody(status int, method string) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound:
		return method == http.MethodPost
	case http.StatusSeeOther:
		return method != http.MethodHead
	}
	return false
}

// referer returns the Referer header for target: none if the previous request was encrypted
// and target is not, and only the origin if target has another one.
func referer(last, target *url.URL) string {
	if last.Scheme == "https" && target.Scheme == "http" {
		return ""
	}
	if last.Scheme != target.Scheme || last.Host != target.Host {
		return last.Scheme + "://" + last.Host + "/"
	}
	return last.String()
}

func remove(header http.Header, names ...string) {
	for _, name := range names {
		delete(header, name)
	}
}

// rootCertificates returns the system's certificates and those in the files that the
// environment names.
func rootCertificates() (*x509.CertPool, error) {
	var extra [][]byte
	for _, variable := range []string{"CODEX_CA_CERTIFICATE", "SSL_CERT_FILE"} {
		path := os.Getenv(variable)
		if path == "" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the CA certificates that %s names: %w", variable, err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("read the CA certificates that %s names: no certificate in %s; it must be a PEM file", variable, path)
		}
		extra = append(extra, text)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read the CA certificates of the system: %w", err)
	}
	for _, text := range extra {
		roots.AppendCertsFromPEM(text)
	}
	return roots, nil
}
