package auth

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
)

// Peers are the users that may connect to a unix socket, besides the one that this
// program runs as, and root. A nil *Peers has no others.
type Peers struct {
	UIDs []uint // --allow-uid
	GIDs []uint // --allow-gid: also of groups that the user is in
}

// Others reports whether anybody but the own user and root may connect.
func (p *Peers) Others() bool { return p != nil && len(p.UIDs)+len(p.GIDs) > 0 }

// ErrPeersUnknown says that the system does not tell who connects to a unix socket.
var ErrPeersUnknown = errors.New("this system does not tell who connects to a unix socket; only its owner can be let in")

// PeerRefusedError says that a user may not connect.
type PeerRefusedError struct{ UID uint }

func (e *PeerRefusedError) Error() string {
	return fmt.Sprintf("the user %d may not connect to this server; its operator can allow that with --allow-uid or --allow-gid", e.UID)
}

// Authenticate decides about a connection to a unix socket. Where the system does not
// tell who it is, the mode of the socket has decided.
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
	return &Principal{Name: fmt.Sprintf("uid:%d", peer.uid)}, nil
}

// peer is a user at the other end of a socket.
type peer struct {
	uid  uint
	gids []uint
}
