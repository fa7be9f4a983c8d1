package server

import (
	"net/http"

	"execserver/internal/auth"
	"execserver/transport"
)

// Gateway passes the WebSocket clients that a server admits on to other machines. Its
// methods may be called concurrently.
type Gateway interface {
	// Serves reports whether a path is the gateway's.
	Serves(path string) bool
	// Upgrades reports whether only WebSocket upgrades may request the path.
	Upgrades(path string) bool
	// Serve serves a request of a principal. holds reports whether its credentials still hold;
	// Serve must ask after Recheck can find the connection.
	Serve(w http.ResponseWriter, r *http.Request, p *auth.Principal, holds func() bool)
	// Recheck ends the connections of the principals whose credentials do not hold.
	Recheck(holds func(*auth.Principal) bool)
}

// serveGateway makes the checks of serveUpgrade before the gateway serves a request.
func (s *Server) serveGateway(gateway Gateway, w http.ResponseWriter, r *http.Request) {
	if gateway.Upgrades(r.URL.Path) {
		if status, text := transport.CheckUpgrade(r); status != 0 {
			s.penalties.counts.Add(RefusedUpgrade)
			refuse(w, status, text)
			return
		}
	}
	if principal := s.admit(w, r); principal != nil {
		gateway.Serve(w, r, principal, func() bool { return s.auth.Holds(principal) })
	}
}

// ServeFor is like ServeConn for a client that a gateway has admitted. passport says who it
// is and what it may do, and must come from a program that may decide that.
func (s *Server) ServeFor(stream transport.Conn, passport []byte) error {
	principal, err := auth.FromPassport(passport)
	if err != nil {
		refuseStream(stream, err)
		return err
	}
	return s.serve(stream, principal, true)
}
