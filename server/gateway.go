package server

import (
	"net/http"

	"execserver/internal/audit"
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
	// Serve serves a request that the server has admitted.
	Serve(w http.ResponseWriter, r *http.Request, by *Admitted)
	// Ready returns why the gateway could not serve a new client now, or nil.
	Ready() error
	// Recheck ends the connections of the principals whose credentials do not hold.
	Recheck(holds func(*auth.Principal) bool)
}

// Admitted is who makes a request to a Gateway.
type Admitted struct {
	*auth.Principal
	Remote    string // address of the client
	server    *Server
	signedOut <-chan struct{} // closed when the browser signs out; nil for other clients
}

// Holds reports whether the credentials still hold. A Gateway must ask after Recheck can find
// the connection.
func (a *Admitted) Holds() bool {
	select {
	case <-a.signedOut:
		return false
	default:
		return a.server.auth.Holds(a.Principal)
	}
}

// Commit records in the audit log what the Gateway is about to do with a machine. After an
// error, it must not do it.
func (a *Admitted) Commit(event, machine string) error {
	return a.server.audit.Commit(a.event(event, machine))
}

// Refuse records in the audit log that the credentials do not allow a use of a machine.
func (a *Admitted) Refuse(machine, reason string) {
	e := a.event("machine refused", machine)
	e.Reason = reason
	a.server.audit.Refused(e)
}

// Record records in the audit log what has happened with a machine.
func (a *Admitted) Record(event, machine, reason string) {
	e := a.event(event, machine)
	e.Reason = reason
	a.server.audit.Record(e)
}

func (a *Admitted) event(event, machine string) audit.Event {
	return audit.Event{Event: event, Remote: a.Remote, Principal: a.Name, Machine: machine}
}

// serveGateway makes the checks of serveUpgrade before the gateway serves a request.
func (s *Server) serveGateway(gateway Gateway, w http.ResponseWriter, r *http.Request) {
	if gateway.Upgrades(r.URL.Path) && s.refuseUpgrade(w, r) {
		return
	}
	if principal := s.admit(w, r); principal != nil {
		gateway.Serve(w, r, &Admitted{Principal: principal, Remote: r.RemoteAddr, server: s})
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
