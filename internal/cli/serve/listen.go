package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"

	"execserver/internal/cli"
	"execserver/internal/metrics"
	"execserver/internal/sys"
	"execserver/server"
)

type listenKind int

const (
	ListenStdio listenKind = iota
	ListenWebSocket
	listenUnix
	listenInherited // one of the two above, depending on the sockets
	listenFleet     // no listener: the server joins a fleet
)

func (k listenKind) String() string {
	return [...]string{"stdio", "a WebSocket", "a unix socket", "a socket of systemd", "a fleet"}[k]
}

// Address is a parsed --listen.
type Address struct {
	Kind      listenKind
	address   string // IP:PORT, or the path of the socket
	ip        netip.Addr
	localhost bool           // loopback, with each IP version of the machine
	inherited []net.Listener // listen on these instead
}

// ParseListen parses --listen (docs/operations.md, "Where a server listens").
func ParseListen(url string, tls bool) (Address, error) {
	scheme, rest, isURL := strings.Cut(url, "://")
	switch {
	case url == "stdio", url == "stdio://":
		return Address{Kind: ListenStdio}, nil
	case url == "systemd":
		return Address{Kind: listenInherited}, nil
	case isURL && scheme == "ws", isURL && scheme == "wss" && tls:
		if port, ok := portOfLocalhost(rest); ok {
			loopback := netip.MustParseAddr("127.0.0.1")
			return Address{Kind: ListenWebSocket, address: netip.AddrPortFrom(loopback, port).String(), ip: loopback, localhost: true}, nil
		}
		address, err := netip.ParseAddrPort(rest)
		// A zone is local to one machine, and invalid in a URL.
		if err != nil || address.Addr().Zone() != "" {
			return Address{}, fmt.Errorf("invalid websocket --listen URL `%s`; expected `%s://IP:PORT`", url, scheme)
		}
		return Address{Kind: ListenWebSocket, address: address.String(), ip: address.Addr()}, nil
	case isURL && scheme == "wss":
		return Address{}, fmt.Errorf("--listen URL `%s` needs --tls-cert and --tls-key", url)
	case isURL && scheme == "unix" && strings.HasPrefix(rest, "/"):
		return Address{Kind: listenUnix, address: rest}, nil
	case isURL && scheme == "unix":
		return Address{}, fmt.Errorf("invalid unix --listen URL `%s`; expected `unix:///absolute/path`", url)
	}
	return Address{}, fmt.Errorf("unsupported --listen URL `%s`; expected `ws://IP:PORT`, `unix:///PATH` or `stdio`", url)
}

// portOfLocalhost returns the port of localhost:PORT.
func portOfLocalhost(address string) (port uint16, ok bool) {
	host, text, _ := strings.Cut(address, ":")
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), strings.EqualFold(host, "localhost") && err == nil
}

// open listens on a TCP port. shown is the address for clients.
func (l Address) open() (listeners []net.Listener, shown string, err error) {
	if l.inherited != nil {
		return l.inherited, l.address, nil
	}
	if l.localhost {
		return l.openLocalhost()
	}
	listener, err := listenTCP(l.network(), l.address)
	if err != nil {
		return nil, "", err
	}
	return []net.Listener{listener}, listener.Addr().String(), nil
}

// localhostAttempts bounds the free ports that openLocalhost tries, because a port that is free
// for IPv4 may be in use for IPv6.
const localhostAttempts = 10

// openLocalhost listens on the same port of 127.0.0.1 and ::1, or of the one that exists.
func (l Address) openLocalhost() (listeners []net.Listener, shown string, err error) {
	_, wanted, _ := net.SplitHostPort(l.address)
	for range localhostAttempts {
		port := wanted
		four, err4 := listenTCP("tcp4", net.JoinHostPort("127.0.0.1", port))
		if err4 == nil {
			_, port, _ = net.SplitHostPort(four.Addr().String())
		} else if !isMissing(err4) {
			return nil, "", err4
		}
		six, err6 := listenTCP("tcp6", net.JoinHostPort("::1", port))
		switch {
		case err6 == nil && four == nil:
			_, port, _ = net.SplitHostPort(six.Addr().String())
			return []net.Listener{six}, "localhost:" + port, nil
		case err6 == nil:
			return []net.Listener{four, six}, "localhost:" + port, nil
		case four != nil && isMissing(err6):
			return []net.Listener{four}, "localhost:" + port, nil
		case four == nil:
			return nil, "", err6
		}
		_ = four.Close()
		if err = err6; wanted != "0" {
			break
		}
	}
	return nil, "", err
}

// isMissing reports whether the machine lacks an IP version.
func isMissing(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)
}

func listenTCP(network, address string) (net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false) // the kernel does not always report the peer's end of a multipath connection
	config.KeepAlive = -1         // the server pings, and drops a connection that is not upgraded in time
	listener, err := config.Listen(context.Background(), network, address)
	if err != nil {
		err = fmt.Errorf("listen on %s: %w", address, sys.WrapError(err))
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w; stop the program that listens there, or choose another port (0 picks a free one)", err)
		}
		return nil, err
	}
	return listener, nil
}

// network returns the name of the network in package net. Without the version, 0.0.0.0 would
// include all IPv6 addresses.
func (l Address) network() string {
	if l.ip.Unmap().Is4() {
		return "tcp4"
	}
	return "tcp"
}

// CheckOpen refuses an address that other machines can reach without authentication.
func (l Address) CheckOpen(authenticated, insecure bool) error {
	if l.Kind != ListenWebSocket || l.ip.Unmap().IsLoopback() || authenticated || insecure {
		return nil
	}
	return fmt.Errorf("refusing to listen on %s without authentication: anyone who can reach it could run commands; "+
		"add --tokens or --ws-auth, listen on 127.0.0.1, or use --insecure-no-auth if that is what you want", l.address)
}

// sockets returns the paths of the sockets of the server. A command that reaches one could do
// anything.
func (l Address) sockets() []string {
	if l.Kind != listenUnix {
		return nil
	}
	if l.inherited == nil {
		return []string{l.address}
	}
	var paths []string
	for _, listener := range l.inherited {
		paths = append(paths, listener.Addr().String())
	}
	return paths
}

// metricsListeners are the listeners of --metrics-listen.
type metricsListeners []net.Listener

// openMetrics listens on --metrics-listen.
func (o *Flags) openMetrics(authenticator *server.Authenticator) (metricsListeners, error) {
	if o.metricsListen == "" {
		return nil, nil
	}
	addr, err := ParseListen("ws://"+o.metricsListen, false)
	if err != nil {
		return nil, cli.InvalidValue("metrics-listen", o.metricsListen, "expected IP:PORT or localhost:PORT")
	}
	err = addr.CheckOpen(authenticator != server.Unauthenticated, o.insecureNoAuth)
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	listeners, shown, err := addr.open()
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	scheme := "http"
	if o.tls != nil {
		scheme = "https"
		for i, l := range listeners {
			listeners[i] = tls.NewListener(l, o.tls)
		}
	}
	o.Say(fmt.Sprintf("exec-server metrics on %s://%s/metrics", scheme, shown))
	return listeners, nil
}

// serve starts to serve metrics. ended receives the error when serving ends by itself.
func (l metricsListeners) serve(srv *server.Server, ended chan<- error) {
	for _, listener := range l {
		go func() {
			if err := srv.ServeMetrics(listener, metrics.Handler); !errors.Is(err, server.ErrClosed) {
				ended <- fmt.Errorf("serve metrics on %s: %w", listener.Addr(), err)
			}
		}()
	}
}
