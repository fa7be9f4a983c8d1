package server

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"

	"execserver/internal/peer"
	"execserver/internal/sandbox"
)

// confinedPeer is what a peer is told that is, or may be, something that this
// server has confined: a command must not leave its sandbox by asking the server
// for another one.
const (
	confinedPeer = "this connection comes from a command that an exec-server has confined"
	unknownPeer  = "it cannot be found out whether this connection comes from a command that an exec-server has confined: "
)

// checkPeer decides about the process at the other end of an upgrade request, as
// far as it is on this machine; nil lets it in.
func (s *Server) checkPeer(r *http.Request) error {
	local, remote := ends(r)
	engine := s.opts.Sandbox
	ownOnly := local.Addr().IsLoopback() && s.opts.Auth == nil && !s.opts.AnyLoopbackPeer
	var here, elsewhere bool
	if engine != nil {
		here, elsewhere = engine.Networked()
	}
	networked := here || elsewhere
	if !ownOnly && engine == nil {
		return nil
	}
	found, err := peer.FindTCP(local, remote)
	switch {
	case err == nil && found.Orphaned():
		return errors.New("nobody holds the other end of this connection any more")
	case err == nil && ownOnly && found.UID != os.Geteuid() && found.UID != 0:
		return fmt.Errorf("without authentication this server serves its own user, %d, and not user %d; "+
			"use a token (--ws-auth), or let all users of this machine in (--loopback-peers=any)", os.Geteuid(), found.UID)
	case err == nil && networked && found.UID == os.Geteuid(): // others cannot be confined by its user
		return s.checkHolder(found, elsewhere)
	case err == nil:
		return nil
	case ownOnly && peer.CanFindTCP() == nil:
		return fmt.Errorf("it cannot be found out which user this connection comes from: %w", err)
	case networked && (err != peer.ErrNotFound || s.localAddresses.has(remote.Addr(), local.Addr())):
		return fmt.Errorf("%s%w", unknownPeer, err)
	}
	return nil
}

// checkHolder decides by where the peer's socket was made, or else by the process that
// holds it. elsewhere says that other programs confine something as well.
func (s *Server) checkHolder(found peer.Socket, elsewhere bool) error {
	if !elsewhere && found.MadeElsewhere() {
		return nil
	}
	namespace, ok := s.holders.Namespace(found.Inode)
	switch {
	case !ok:
		return errors.New(unknownPeer + "no process that this server may look at holds its other end; " +
			"try again when no sandbox with a network is in use")
	case s.opts.Sandbox.Inside(namespace, peer.OwnNamespace(), elsewhere):
		return errors.New(confinedPeer)
	}
	return nil
}

// checkUnixPeer is the same for a connection of a unix socket.
func (s *Server) checkUnixPeer(conn net.Conn) error {
	if s.opts.Sandbox == nil {
		return nil
	}
	here, elsewhere := s.opts.Sandbox.Networked()
	if !here && !elsewhere {
		return nil
	}
	namespace, err := peer.UnixNamespace(conn)
	switch {
	case err != nil:
		return fmt.Errorf("%s%w", unknownPeer, err)
	case s.opts.Sandbox.Inside(namespace, peer.OwnNamespace(), elsewhere):
		return errors.New(confinedPeer)
	}
	return nil
}

// ends are the addresses of the server's end of a request's connection and of the
// peer's.
func ends(r *http.Request) (local, remote netip.AddrPort) {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		local = netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), a.AddrPort().Port())
	}
	remote, _ = netip.ParseAddrPort(r.RemoteAddr)
	return local, netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
}

// checkNetwork refuses a sandbox with a network where a command in there could
// connect to this server without being known.
func (s *Server) checkNetwork() error {
	if !s.listensOnTCP() {
		return nil
	}
	if err := peer.CanFindTCP(); err != nil {
		return &sandbox.UnavailableError{Reason: "this server listens on TCP, and cannot tell a command with a network " +
			"from other clients: " + err.Error() + "; ask for a sandbox without a network, or let it listen on a unix socket"}
	}
	return nil
}

func (s *Server) listensOnTCP() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.listeners {
		if l.Addr().Network() == "tcp" {
			return true
		}
	}
	return false
}

// warnOfUsers says what a listener without authentication cannot keep out.
func (s *Server) warnOfUsers(l net.Listener) {
	address, ok := l.Addr().(*net.TCPAddr)
	if !ok || !address.IP.IsLoopback() || s.opts.Auth != nil || s.opts.AnyLoopbackPeer {
		return
	}
	if err := peer.CanFindTCP(); err != nil {
		s.log.Warn("every user of this machine can connect and run commands as the server's user: "+
			"it cannot tell who connects; use a token (--ws-auth) or a unix socket", "address", address, "error", err)
	}
}
