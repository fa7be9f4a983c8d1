package auth

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
)

// Peers are the users that may connect to a unix socket, besides the server's own user
// and root. A nil *Peers has no others.
type Peers struct {
	UIDs []uint
	GIDs []uint // also supplementary groups of the user
}

// Others reports whether other users may connect, besides the server's own user and root.
func (p *Peers) Others() bool { return p != nil && len(p.UIDs)+len(p.GIDs) > 0 }

// ErrPeersUnknown says that the system does not report who connects to a unix socket.
var ErrPeersUnknown = errors.New("this system does not tell who connects to a unix socket; only its owner can be let in")

// PeerRefusedError says that a user may not connect.
type PeerRefusedError struct{ UID uint }

func (e *PeerRefusedError) Error() string {
	return fmt.Sprintf("the user %d may not connect to this server; its operator can allow that", e.UID)
}

// Authenticate decides about a connection to a unix socket. Where the system does not
// report the user, the mode of the socket has decided.
func (p *Peers) Authenticate(conn net.Conn) (*Principal, error) {
	peer, err := peerOf(conn)
	switch {
	case errors.Is(err, ErrPeersUnknown) && !p.Others():
		return Anybody, nil
	case err != nil:
		return nil, fmt.Errorf("find out who connects: %w", err)
	case peer.uid == 0, int(peer.uid) == os.Geteuid():
	case p != nil && slices.Contains(p.UIDs, peer.uid):
	case p != nil && slices.ContainsFunc(peer.gids, func(gid uint) bool { return slices.Contains(p.GIDs, gid) }):
	default:
		return nil, &PeerRefusedError{UID: peer.uid}
	}
	return &Principal{Name: fmt.Sprintf("uid:%d", peer.uid), Alone: !p.Others()}, nil
}

// peer is a user at the other end of a socket.
type peer struct {
	uid  uint
	gids []uint
}
