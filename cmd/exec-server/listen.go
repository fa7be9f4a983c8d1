package main

import (
	"fmt"
	"net/netip"
	"strings"
)

type listenKind int

const (
	listenStdio listenKind = iota
	listenWebSocket
	listenUnix
)

func (k listenKind) String() string {
	return [...]string{"stdio", "a WebSocket", "a unix socket"}[k]
}

// listenAddress is a parsed --listen.
type listenAddress struct {
	kind    listenKind
	address string // IP:PORT, or the path of the socket
	ip      netip.Addr
}

// parseListen understands the forms of --listen (PROTOCOL.md, "Listening").
func parseListen(url string, tls bool) (listenAddress, error) {
	scheme, rest, isURL := strings.Cut(url, "://")
	switch {
	case url == "stdio", url == "stdio://":
		return listenAddress{kind: listenStdio}, nil
	case isURL && scheme == "ws", isURL && scheme == "wss" && tls:
		address, err := netip.ParseAddrPort(rest)
		// A zone has a meaning on one machine only, and none in a URL.
		if err != nil || address.Addr().Zone() != "" {
			return listenAddress{}, fmt.Errorf("invalid websocket --listen URL `%s`; expected `%s://IP:PORT`", url, scheme)
		}
		return listenAddress{kind: listenWebSocket, address: address.String(), ip: address.Addr()}, nil
	case isURL && scheme == "wss":
		return listenAddress{}, fmt.Errorf("--listen URL `%s` needs --tls-cert and --tls-key", url)
	case isURL && scheme == "unix" && strings.HasPrefix(rest, "/"):
		return listenAddress{kind: listenUnix, address: rest}, nil
	case isURL && scheme == "unix":
		return listenAddress{}, fmt.Errorf("invalid unix --listen URL `%s`; expected `unix:///absolute/path`", url)
	}
	return listenAddress{}, fmt.Errorf("unsupported --listen URL `%s`; expected `ws://IP:PORT`, `unix:///PATH` or `stdio`", url)
}

// network is what package net calls it. Without the number, 0.0.0.0 would mean
// all addresses of IPv6 as well.
func (l listenAddress) network() string {
	if l.ip.Unmap().Is4() {
		return "tcp4"
	}
	return "tcp"
}

// checkOpen refuses an address that others can reach without authentication.
func (l listenAddress) checkOpen(authenticated, insecure bool) error {
	if l.kind != listenWebSocket || l.ip.Unmap().IsLoopback() || authenticated || insecure {
		return nil
	}
	return fmt.Errorf("refusing to listen on %s without authentication: everybody who can reach it could run commands here; "+
		"add --tokens or --ws-auth, listen on 127.0.0.1, or say --insecure-no-auth if that is what you want", l.address)
}

// sockets are the paths of the server's own sockets: whoever reaches one can do
// everything.
func (l listenAddress) sockets() []string {
	if l.kind == listenUnix {
		return []string{l.address}
	}
	return nil
}
