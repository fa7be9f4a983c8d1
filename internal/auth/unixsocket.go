package auth

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"execserver/internal/sys"
)

// ListenUnix listens on a unix socket with mode 0600. It replaces the socket of a dead
// server. It refuses that of a live server, and a path that is not a socket.
func ListenUnix(path string) (net.Listener, error) { return listenUnix(path, 0o600) }

// ListenUnixForAll is like ListenUnix, but lets every user who can reach the socket
// connect, for a server that checks the peer. It refuses a directory in which another user
// could replace the socket, because clients of other users cannot recognize it by its
// owner.
func ListenUnixForAll(path string) (net.Listener, error) {
	if err := checkSocketDirectory(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("listen on unix socket %s: %w", path, sys.WrapError(err))
	}
	return listenUnix(path, 0o666)
}

func listenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	if limit := len(syscall.RawSockaddrUnix{}.Path) - 1; len(path) > limit {
		return nil, fmt.Errorf("listen on unix socket %s: the path has %d bytes, and this system allows %d; choose a shorter one",
			path, len(path), limit)
	}
	if err := removeStale(path); err != nil {
		return nil, fmt.Errorf("listen on unix socket %s: %w", path, sys.WrapError(err))
	}
	// The mode set on the unbound socket, less the umask, is the mode that Linux gives
	// the file, which therefore never exists with a wider mode. Elsewhere chmod follows.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { setSocketMode(fd, mode) })
	}}
	listener, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on unix socket %s: %w", path, sys.WrapError(err))
	}
	if err := ensureSocketMode(path, mode); err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("listen on unix socket %s: %w", path, sys.WrapError(err))
	}
	return own(listener, path), nil
}

// ownSocket is a listener that removes its socket when it is closed, and nothing else that has
// taken its path.
type ownSocket struct {
	*net.UnixListener
	remove func()
}

func own(l net.Listener, path string) net.Listener {
	listener, ok := l.(*net.UnixListener)
	made, err := os.Lstat(path)
	if !ok || err != nil {
		return l
	}
	listener.SetUnlinkOnClose(false)
	return &ownSocket{listener, sync.OnceFunc(func() {
		now, err := os.Lstat(path)
		if err == nil && now.Mode().Type() == fs.ModeSocket && os.SameFile(made, now) {
			_ = os.Remove(path) // what it belongs to is ending anyway
		}
	})}
}

// Close removes the socket before it closes the listener: afterwards its inode could be that of
// another file, and another server could take the path.
func (l *ownSocket) Close() error {
	l.remove()
	return l.UnixListener.Close()
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("the path exists and is not a socket; remove it or choose another path")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return errors.New("another server is listening there")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// Peers are the users that may connect to a unix socket in addition to the server's own
// user and root. A nil *Peers means no others.
type Peers struct {
	UIDs []uint
	GIDs []uint // also supplementary groups of the user
}

// Others reports whether users other than the server's own and root may connect.
func (p *Peers) Others() bool { return p != nil && len(p.UIDs)+len(p.GIDs) > 0 }

// ErrPeersUnsupported reports that the system cannot identify the peer of a unix socket.
var ErrPeersUnsupported = errors.New("peer credentials of unix sockets are not supported on this system; only the owner of the socket may connect")

// PeerRefusedError reports that a user may not connect.
type PeerRefusedError struct{ UID uint }

func (e *PeerRefusedError) Error() string {
	return fmt.Sprintf("the user %d may not connect to this server; its operator can allow that", e.UID)
}

// Authenticate decides about a connection to a unix socket. Where the system does not
// report the user, the mode of the socket has decided.
func (p *Peers) Authenticate(conn net.Conn) (*Principal, error) {
	peer, err := peerOf(conn)
	switch {
	case errors.Is(err, ErrPeersUnsupported) && !p.Others():
		return Unauthenticated, nil
	case err != nil:
		return nil, fmt.Errorf("identify the peer: %w", err)
	case peer.uid == 0, int(peer.uid) == os.Geteuid():
	case p != nil && slices.Contains(p.UIDs, peer.uid):
	case p != nil && slices.ContainsFunc(peer.gids, func(gid uint) bool { return slices.Contains(p.GIDs, gid) }):
	default:
		return nil, &PeerRefusedError{UID: peer.uid}
	}
	return p.Principal(fmt.Sprintf("uid:%d", peer.uid)), nil
}

// Principal returns the principal that Authenticate returns for a user by its name.
func (p *Peers) Principal(name string) *Principal {
	if name == "" {
		return Unauthenticated
	}
	return &Principal{Name: name, Alone: !p.Others()}
}

// peer is a user at the other end of a socket.
type peer struct {
	uid  uint
	gids []uint
}
