package server

import (
	"maps"
	"sync/atomic"
	"time"

	"execserver/internal/counter"
	"execserver/internal/output"
	"execserver/protocol"
)

// Stats are the statistics of a server since New, and its present state. Maps lack kinds
// that have not occurred.
type Stats struct {
	Version string // as in Options

	// Processes that were started, how many of them have not exited, how the others ended,
	// and why requests to start one failed.
	Started      uint64
	Running      int
	Endings      map[Ending]uint64
	StartsFailed map[StartFailure]uint64

	// Starts is the number of starts that were answered with success, including repeated ones.
	// StartTime is the sum of the times from the request to the running program, and StartsWithin
	// is the number of starts that took at most the given time.
	Starts       uint64
	StartTime    time.Duration
	StartsWithin map[time.Duration]uint64

	// Confined counts the sandboxes that were requested.
	Confined map[ConfinedFor]uint64

	// Output of all processes, in bytes: read from processes; evicted after the client had
	// acknowledged it; dropped before that. OutputRetained is the memory
	// that retains output now, and OutputLimit its limit. Stalls counts how often a stream had to
	// wait for free retention, and Stalled the streams that wait now.
	OutputBytes, OutputEvicted, OutputDropped uint64
	OutputRetained, OutputLimit               int64
	Stalls                                    uint64
	Stalled                                   int

	SessionsCreated, SessionsResumed, SessionsEnded uint64
	SessionsAttached, SessionsDetached              int // now

	Opened      uint64                  // connections
	Connections map[ConnectionState]int // now
	Refusals    map[RefusalReason]uint64

	Requests       map[string]uint64 // by method; "unknown" for all that do not exist
	FileOperations int               // under way now
	Forwards       int               // forwarded connections now
	AuditLost      uint64            // events that could not be written to the audit log
	Recordings     RecordingCounts
}

// RecordingCounts are the statistics of the recordings of processes.
type RecordingCounts struct {
	Live    int               // recordings that are being written
	Kept    int               // recordings that are complete
	Bytes   int64             // of all files
	Stopped map[string]uint64 // recordings that ended before their process, by RecordingStops
	Missing uint64            // bytes of output that a slow disk kept from being recorded
}

// RecordingStops are the reasons for which recordings end before their process: they have
// reached their limit, all together have, or they could not be written.
var RecordingStops = []string{"size", "total", "error"}

// Ending is a way in which a program ended.
type Ending struct {
	Result EndingResult
	By     protocol.EndedBy // "" if unknown
}

// EndingResult is how a program ended.
type EndingResult string

// The ways in which a program ends.
const (
	EndedWithSuccess EndingResult = "success" // exit status 0
	EndedWithFailure EndingResult = "failure" // another exit status
	EndedBySignal    EndingResult = "signal"
	EndedUnknown     EndingResult = "unknown" // the system did not report it
)

func endingOf(exit protocol.ExitRecord) Ending {
	e := Ending{EndedWithFailure, exit.EndedBy}
	switch {
	case exit.Signal != "":
		e.Result = EndedBySignal
	case exit.ExitCode == 0:
		e.Result = EndedWithSuccess
	case exit.ExitCode < 0:
		e.Result = EndedUnknown
	}
	return e
}

// StartFailure is why a process was not started.
type StartFailure string

// The reasons why a process was not started.
const (
	StartRefused StartFailure = "refused" // by a limit, or because the server does not allow it
	StartInvalid StartFailure = "invalid" // the params are invalid, or not supported on this machine
	StartFailed  StartFailure = "failed"  // the system refused, as for a program that does not exist
)

func failureOf(err error) StartFailure {
	switch protocol.AsError(err).Code {
	case protocol.CodeInvalidRequest:
		return StartRefused
	case protocol.CodeInvalidParams:
		return StartInvalid
	}
	return StartFailed
}

// ConfinedFor is the purpose of a sandbox.
type ConfinedFor string

// The purposes of sandboxes.
const (
	ConfinedProcess ConfinedFor = "process"
	ConfinedFiles   ConfinedFor = "files" // a file operation
)

// ConnectionState is the relation of a connection to sessions.
type ConnectionState string

// The states of a connection.
const (
	ConnectionWaiting   ConnectionState = "waiting" // for initialize
	ConnectionOwner     ConnectionState = "owner"   // of a session
	ConnectionObserver  ConnectionState = "observer"
	ConnectionNoSession ConnectionState = "nosession" // as its client asked
)

// RefusalReason is why the server refused a client.
type RefusalReason string

// The reasons why the server refuses a client.
const (
	RefusedHost        RefusalReason = "host"        // it addressed this machine by a foreign name
	RefusedOrigin      RefusalReason = "origin"      // it is a web page
	RefusedTLS         RefusalReason = "tls"         // the handshake of TLS failed
	RefusedUpgrade     RefusalReason = "upgrade"     // no proper request for a WebSocket
	RefusedCredentials RefusalReason = "credentials" // missing, wrong or expired
	RefusedPeer        RefusalReason = "peer"        // another user, or a confined command
	RefusedScope       RefusalReason = "scope"       // its credentials do not allow a request
	RefusedHandshake   RefusalReason = "handshake"   // too many or too slow before initialize
	RefusedLimit       RefusalReason = "limit"       // of connections or sessions
	RefusedSession     RefusalReason = "session"     // it cannot resume or observe the session
	RefusedAudit       RefusalReason = "audit"       // the audit log cannot record it
	RefusedShutdown    RefusalReason = "shutdown"
)

// counters are the counters that are kept neither by sessions nor by logs.
type counters struct {
	opened   atomic.Uint64
	starts   counter.Durations
	failed   counter.Table[StartFailure]
	endings  counter.Table[Ending]
	confined counter.Table[ConfinedFor]
	requests map[string]*atomic.Uint64 // by method; never changes
}

// unknownMethod stands for the methods that do not exist.
const unknownMethod = "unknown"

func (c *counters) begin() {
	c.requests = map[string]*atomic.Uint64{unknownMethod: new(atomic.Uint64)}
	for method := range methods {
		c.requests[method] = new(atomic.Uint64)
	}
}

func (c *counters) request(method string) {
	n := c.requests[method]
	if n == nil {
		n = c.requests[unknownMethod]
	}
	n.Add(1)
}

// Stats returns the statistics of the server. It is cheap enough to be called every second.
func (s *Server) Stats() Stats {
	of, c := s.sessions.Counts(), &s.counters
	stats := Stats{
		Version: s.opts.Version,
		Started: of.Started, Endings: c.endings.All(), StartsFailed: c.failed.All(), Confined: c.confined.All(),
		SessionsCreated: of.Created, SessionsResumed: of.Resumed, SessionsEnded: of.Ended,
		SessionsAttached: of.Attached, SessionsDetached: of.Detached,
		Opened: c.opened.Load(), Connections: s.connectionStates(), Refusals: s.refusals.counts.All(),
		Requests:       make(map[string]uint64),
		FileOperations: s.quotas.operations.Count(), Forwards: s.quotas.forwards.Count(),
		AuditLost: s.audit.Lost(),
	}
	stats.addOutput(of.Output)
	if recorder := s.ext.Recorder; recorder != nil {
		stats.Recordings = RecordingCounts(recorder.Counts())
	}
	stats.Starts, stats.StartTime, stats.StartsWithin = c.starts.Read()
	exited := uint64(0)
	for n := range maps.Values(stats.Endings) {
		exited += n
	}
	stats.Running = int(of.Started - min(exited, of.Started)) // one may have started and exited since
	for method, n := range c.requests {
		if n := n.Load(); n > 0 {
			stats.Requests[method] = n
		}
	}
	return stats
}

func (s *Stats) addOutput(o output.Counts) {
	s.OutputBytes, s.OutputEvicted, s.OutputDropped = o.Bytes, o.Evicted, o.Dropped
	s.OutputRetained, s.OutputLimit = o.Retained, o.Limit
	s.Stalls, s.Stalled = o.Stalls, o.Stalled
}

// connectionStates counts the connections by their state.
func (s *Server) connectionStates() map[ConnectionState]int {
	states := make(map[ConnectionState]int)
	s.mu.Lock()
	conns := make(map[*connection]bool, len(s.conns))
	for c := range s.conns {
		conns[c] = c.counted
	}
	s.mu.Unlock()
	for c, counted := range conns {
		states[c.state(counted)]++
	}
	return states
}
