//go:build !linux && !darwin && !freebsd

package auth

import "net"

// PeersSupported reports whether the system identifies the peer of a unix socket.
const PeersSupported = false

func peerOf(net.Conn) (peer, error) { return peer{}, ErrPeersUnsupported }
