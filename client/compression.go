package client

import (
	"net"
	"net/netip"
)

// Compression says when to compress what goes to and from a server (PROTOCOL.md,
// "Compressed messages"). It has no effect if the server lacks the capability compress.
type Compression int

const (
	// CompressRemote compresses unless the server is reached over loopback, a unix socket or
	// memory. It is the default.
	CompressRemote Compression = iota
	CompressAlways
	CompressNever
)

// wanted reports whether to ask a server for compression; remote is its Conn.Remote.
func (c Compression) wanted(remote string) bool {
	switch c {
	case CompressAlways:
		return true
	case CompressNever:
		return false
	}
	if remote == "unix socket" || remote == "in-process connection" {
		return false
	}
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote // a URL may have no port
	}
	address, err := netip.ParseAddr(host)
	return host != "localhost" && (err != nil || !address.IsLoopback())
}
