package transport

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// tunnelFor returns a dialer that reaches the target of a request for a plain WebSocket
// through the HTTP proxy of the environment, with CONNECT. Package http sends such a proxy
// the request itself, and few proxies pass an upgrade on. It returns nil if package http
// does the right thing: without a proxy, for wss and for SOCKS.
func tunnelFor(request *http.Request) (dial func(ctx context.Context, network, address string) (net.Conn, error), err error) {
	proxy, err := http.ProxyFromEnvironment(request)
	if err != nil || proxy == nil || request.URL.Scheme != "http" || proxy.Scheme != "http" && proxy.Scheme != "https" {
		return nil, err
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialProxy(ctx, network, proxy)
		if err != nil {
			return nil, fmt.Errorf("connect to the proxy %s: %w", proxy.Host, bare(err))
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
		return newWrittenFirst(conn), nil
	}, nil
}

func dialProxy(ctx context.Context, network string, proxy *url.URL) (net.Conn, error) {
	port := proxy.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[proxy.Scheme]
	}
	address := net.JoinHostPort(proxy.Hostname(), port)
	if proxy.Scheme == "https" {
		return new(tls.Dialer).DialContext(ctx, network, address)
	}
	return new(net.Dialer).DialContext(ctx, network, address)
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
