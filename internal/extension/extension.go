// Package extension defines the options of a server that only the programs of this module can
// set, because their types are internal: the optional parts of a server, such as a page, a
// recorder and a gateway. The server and those parts know each other only by the interfaces of
// this package.
package extension

import (
	"net/http"
	"time"

	"execserver/internal/audit"
	"execserver/internal/auth"
	"execserver/internal/ownership"
	"execserver/internal/sandbox"
	"execserver/internal/session"
	"execserver/protocol"
	"execserver/transport"
)

// Options are the Extensions of server.Options. The zero value adds nothing to a server.
type Options struct {
	Ownership *ownership.Ownership // tracks the descendants of processes; nil uses process groups
	Sandbox   *sandbox.Engine      // instead of Sandbox in server.Options
	Recorder  Recorder             // records processes; nil records nothing
	Page      Page                 // for browsers; nil serves none

	Gateway Gateway // passes clients on to other machines; nil serves none
	Machine string  // the name under which this server has joined a fleet, if any

	// Relay serves the connections of listeners instead of the server, which only decides
	// who may connect. It ends the connection before it returns.
	Relay func(transport.Conn) error
}

// Recorder records processes, and gives the recordings to clients.
type Recorder interface {
	session.Recorder

	// List serves recording/list with the recordings that the viewer may have. reserve
	// waits until the answer may use so many bytes.
	List(p protocol.RecordingsParams, viewer RecordingViewer, reserve func(bytes int) error) (protocol.RecordingsResult, error)
	// Read serves recording/read likewise.
	Read(p protocol.ReadRecordingParams, viewer RecordingViewer, reserve func(bytes int) error) (protocol.ReadRecordingResult, error)
	// Counts returns statistics.
	Counts() RecordingCounts
}

// RecordingCounts are the statistics of a Recorder; server.RecordingCounts describes them.
type RecordingCounts struct {
	Live    int
	Kept    int
	Bytes   int64
	Stopped map[string]uint64
	Missing uint64
}

// RecordingViewer is a client that asks for recordings.
type RecordingViewer struct {
	Principal string      // of the client
	Grant     *auth.Grant // of its credentials
}

// Sees reports whether the client may have a recording of a principal's process. A client
// that may observe sees the output of the processes of others. Only the principal itself sees
// their input, and a client that may do everything.
func (v RecordingViewer) Sees(principal string, input bool) bool {
	own := principal == v.Principal
	switch {
	case !own && !v.Grant.Observes():
		return false
	case !input || v.Grant.Allows(auth.Full):
		return true
	}
	return own && v.Grant.Allows(auth.Exec)
}

// Page is a page that shows a server to browsers (EXTENSIONS.md, "webLink"). Its methods
// may be called concurrently.
type Page interface {
	// Link returns the path, with a fragment, at which one browser can sign in once to do
	// what the principal may do, and for how long the link is valid.
	Link(principal *auth.Principal) (path string, life time.Duration)

	// Handlers returns the handlers of the page by their paths. The server passes requests
	// of the page's own origin to them.
	Handlers(server PageServer) map[string]http.HandlerFunc
}

// PageServer is the server of a Page. A method that reports false, or returns nil, has
// answered the request.
type PageServer interface {
	// Holds reports whether the credentials of a principal are still valid.
	Holds(p *auth.Principal) bool
	// Admit authenticates a request by the token that clients send. A server without
	// authentication admits nobody, because nothing shows that the browser may connect.
	Admit(w http.ResponseWriter, r *http.Request) *auth.Principal
	// Refuse answers a request with wrong credentials.
	Refuse(w http.ResponseWriter, r *http.Request, reason string)
	// CheckPeer reports whether the process that sends a request may connect.
	CheckPeer(w http.ResponseWriter, r *http.Request) bool
	// CheckUpgrade reports whether a request is a proper upgrade to a WebSocket.
	CheckUpgrade(w http.ResponseWriter, r *http.Request) bool
	// SignedIn records that a browser has signed in as a principal.
	SignedIn(r *http.Request, p *auth.Principal)

	// Serve serves a WebSocket connection of a browser to a principal, until it ends, or
	// until signedOut is closed. The request has passed CheckUpgrade.
	Serve(w http.ResponseWriter, r *http.Request, p *auth.Principal, signedOut <-chan struct{})
	// IsGateway reports whether the server is a gateway. ServeGateway serves its page, and
	// Serve does not.
	IsGateway() bool
	// ServeGateway has the gateway serve a request of a browser to a principal, until that
	// ends, or until signedOut is closed. The path is one of the gateway's. An upgrade has
	// passed CheckUpgrade.
	ServeGateway(w http.ResponseWriter, r *http.Request, p *auth.Principal, signedOut <-chan struct{})
}

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

// Admitted is the principal of a request to a Gateway.
type Admitted struct {
	*auth.Principal
	Remote string // address of the client

	Auth      *auth.Authenticator // of the server
	Audit     *audit.Log          // of the server
	SignedOut <-chan struct{}     // closed when the browser signs out; nil for other clients
}

// Holds reports whether the credentials still hold. A Gateway must ask after Recheck can find
// the connection.
func (a *Admitted) Holds() bool {
	select {
	case <-a.SignedOut:
		return false
	default:
		return a.Auth.Valid(a.Principal)
	}
}

// Commit records in the audit log an action on a machine before the Gateway carries it out.
// After an error, it must not.
func (a *Admitted) Commit(event, machine string) error {
	return a.Audit.Commit(a.event(event, machine))
}

// Refuse records in the audit log that the credentials do not allow a use of a machine.
func (a *Admitted) Refuse(machine, reason string) {
	e := a.event("machine refused", machine)
	e.Reason = reason
	a.Audit.Refused(e)
}

// Record records in the audit log what has happened with a machine.
func (a *Admitted) Record(event, machine, reason string) {
	e := a.event(event, machine)
	e.Reason = reason
	a.Audit.Record(e)
}

func (a *Admitted) event(event, machine string) audit.Event {
	return audit.Event{Event: event, Remote: a.Remote, Principal: a.Name, Machine: machine}
}
