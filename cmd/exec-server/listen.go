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

// listenAddress is a parsed --listen.
type listenAddress struct {
	kind    listenKind
	address string // IP:PORT, or the path of the socket
	ip      netip.Addr
}

// parseListen understands the forms of --listen (PROTOCOL.md, "Listening").
func parseListen(url string, tls bool) (listenAddress, error) {
	scheme, rest, _ := strings.Cut(url, "://")
	switch {
	case url == "stdio", url == "stdio://":
		return listenAddress{kind: listenStdio}, nil
	case scheme == "ws" && rest != url, scheme == "wss" && tls:
		address, err := netip.ParseAddrPort(rest)
		if err != nil || !strings.Contains(url, "://") {
			return listenAddress{}, fmt.Errorf("invalid websocket --listen URL `%s`; expected `%s://IP:PORT`", url, scheme)
		}
		return listenAddress{kind: listenWebSocket, address: address.String(), ip: address.Addr()}, nil
	case scheme == "wss" && rest != "":
		return listenAddress{}, fmt.Errorf("--listen URL `%s` needs --tls-cert and --tls-key", url)
	case scheme == "unix" && strings.HasPrefix(rest, "/"):
		return listenAddress{kind: listenUnix, address: rest}, nil
	case scheme == "unix" && strings.Contains(url, "://"):
		return listenAddress{}, fmt.Errorf("invalid unix --listen URL `%s`; expected `unix:///absolute/path`", url)
	}
	return listenAddress{}, fmt.Errorf("unsupported --listen URL `%s`; expected `ws://IP:PORT`, `unix://PATH` or `stdio`", url)
}

// checkOpen refuses an address that others can reach without authentication.
func (l listenAddress) checkOpen(authenticated, insecure bool) error {
	if l.kind != listenWebSocket || l.ip.Unmap().IsLoopback() || authenticated || insecure {
		return nil
	}
	return fmt.Errorf("refusing to listen on %s without authentication: everybody who can reach it could run commands here; "+
		"add --ws-auth, listen on 127.0.0.1, or say --insecure-no-auth if that is what you want", l.address)
}
