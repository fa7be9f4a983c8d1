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

// confinedPeer is the error for a peer that is, or may be, confined by this server: a
// command must not leave its sandbox by asking the server for another one.
const (
	confinedPeer = "this connection comes from a command that an exec-server has confined"
	unknownPeer  = "it cannot be found out whether this connection comes from a command that an exec-server has confined: "
)

// checkPeer checks the process at the other end of an upgrade request, if it is on this
// machine. nil admits it.
func (s *Server) checkPeer(r *http.Request) error {
	local, remote := ends(r)
	engine := s.sandbox
	ownOnly := local.Addr().IsLoopback() && s.auth == nil && !s.opts.AnyLoopbackPeer
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
			"its operator can require a token, or admit every user of this machine", os.Geteuid(), found.UID)
	case err == nil && networked && found.UID == os.Geteuid(): // a command confined by its user has the server's user id
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

// checkHolder decides by the control group in which the peer's socket was made, or else
// by the process that holds it. elsewhere says that other programs have sandboxes, too.
func (s *Server) checkHolder(found peer.Socket, elsewhere bool) error {
	if !elsewhere && found.MadeElsewhere() {
		return nil
	}
	namespace, ok := s.holders.Namespace(found.Inode)
	switch {
	case !ok:
		return errors.New(unknownPeer + "no process that this server may look at holds its other end; " +
			"try again when no sandbox with a network is in use")
	case s.sandbox.Inside(namespace, peer.OwnNamespace(), elsewhere):
		return errors.New(confinedPeer)
	}
	return nil
}

// checkUnixPeer does the same for a connection of a unix socket.
func (s *Server) checkUnixPeer(conn net.Conn) error {
	if s.sandbox == nil {
		return nil
	}
	here, elsewhere := s.sandbox.Networked()
	if !here && !elsewhere {
		return nil
	}
	namespace, err := peer.UnixNamespace(conn)
	switch {
	case err != nil:
		return fmt.Errorf("%s%w", unknownPeer, err)
	case s.sandbox.Inside(namespace, peer.OwnNamespace(), elsewhere):
		return errors.New(confinedPeer)
	}
	return nil
}

// ends returns the addresses of the server's end of a request's connection and of the
// peer's.
func ends(r *http.Request) (local, remote netip.AddrPort) {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		local = netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), a.AddrPort().Port())
	}
	remote, _ = netip.ParseAddrPort(r.RemoteAddr)
	return local, netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
}

// checkNetwork refuses a sandbox with a network if the server could not recognize
// connections of its command.
func (s *Server) checkNetwork() error {
	if !s.overHTTP.Load() {
		return nil
	}
	if err := peer.CanFindTCP(); err != nil {
		return &sandbox.UnavailableError{Reason: "this server serves WebSocket clients, and cannot tell a command with a network " +
			"from other clients: " + err.Error() + "; ask for a sandbox without a network, or let it listen on a unix socket"}
	}
	return nil
}

// warnOfUsers logs what a listener without authentication cannot keep out.
func (s *Server) warnOfUsers(l net.Listener) {
	address, ok := l.Addr().(*net.TCPAddr)
	if !ok || !address.IP.IsLoopback() || s.auth != nil || s.opts.AnyLoopbackPeer {
		return
	}
	if err := peer.CanFindTCP(); err != nil {
		s.log.Warn("every user of this machine can connect and run commands as the server's user: "+
			"it cannot tell who connects; require a token, or listen on a unix socket", "address", address, "error", err)
	}
}
