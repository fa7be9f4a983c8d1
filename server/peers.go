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

// checkPeer checks the process at the other end of a request, if it is on this machine. nil
// admits it.
func (s *Server) checkPeer(r *http.Request) error {
	local, remote := ends(r)
	ownOnly := local.Addr().IsLoopback() && s.auth == nil && !s.opts.AnyLoopbackPeer
	if !ownOnly && s.opts.AllowConfinedPeers {
		return nil
	}
	found, here, err := s.judge.Find(local, remote)
	switch {
	case peer.CanFindTCP() != nil:
		return nil // warnOfPeers has said so
	case err != nil:
		return err
	case !here && ownOnly:
		return errors.New("it cannot be found out which user this connection comes from")
	case !here:
		return nil
	case ownOnly && found.UID != os.Geteuid() && found.UID != 0:
		return fmt.Errorf("without authentication this server serves its own user, %d, and not user %d; "+
			"its operator can require a token, or admit every user of this machine", os.Geteuid(), found.UID)
	case s.opts.AllowConfinedPeers:
		return nil
	}
	return s.judge.TCP(found)
}

// checkUnixPeer does the same for a connection of a unix socket.
func (s *Server) checkUnixPeer(conn net.Conn) error {
	if s.opts.AllowConfinedPeers {
		return nil
	}
	return s.judge.Unix(conn)
}

// hintAtPeers adds to an error about confined peers how to allow them.
func (s *Server) hintAtPeers(err error) error {
	if s.opts.ConfinedPeersHint == "" || !peer.IsAboutConfinement(err) {
		return err
	}
	return fmt.Errorf("%w (%s)", err, s.opts.ConfinedPeersHint)
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
	s.judge.Confines()
	if !s.overHTTP.Load() {
		return nil
	}
	if err := peer.CanFindTCP(); err != nil {
		return &sandbox.UnavailableError{Reason: "this server serves WebSocket clients, and cannot tell a command with a network " +
			"from other clients: " + err.Error() + "; ask for a sandbox without a network, or let it listen on a unix socket"}
	}
	return nil
}

// warnOfPeers logs what a listener cannot keep out.
func (s *Server) warnOfPeers(l net.Listener) {
	judged := peer.CanJudge()
	if address, ok := l.Addr().(*net.TCPAddr); ok {
		err := peer.CanFindTCP()
		if err != nil && address.IP.IsLoopback() && s.auth == nil && !s.opts.AnyLoopbackPeer {
			s.log.Warn("every user of this machine can connect and run commands as the server's user: "+
				"it cannot tell who connects; require a token, or listen on a unix socket", "address", address, "error", err)
		}
		if judged == nil && !errors.Is(err, peer.ErrUnsupported) {
			judged = err
		}
	}
	if judged != nil && !s.opts.AllowConfinedPeers {
		s.log.Warn("commands in sandboxes and containers of this machine can connect as others can: "+
			"the server cannot tell which processes are confined", "address", l.Addr(), "error", judged)
	}
}
