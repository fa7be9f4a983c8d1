package protocol

import (
	"errors"
	"strings"
)

// Methods about whole sessions, unknown to released clients (PROTOCOL.md, "Keeping a
// session", "Listing sessions", "Controlling sessions").
const (
	MethodKeep       = "session/keep"
	MethodSessions   = "session/list"
	MethodEndSession = "session/end"
)

// SessionLifetime says how long the server keeps a session without a connection, in
// milliseconds (PROTOCOL.md, "Sessions").
type SessionLifetime struct {
	DetachedMs uint64 `json:"detachedMs"` // after the connection broke or was closed
	SilentMs   uint64 `json:"silentMs"`   // after the peer fell silent
	MaxKeepMs  uint64 `json:"maxKeepMs"`  // the longest lease; 0: there are none
}

// KeepParams are the params of session/keep.
type KeepParams struct {
	Name   *string `json:"name,omitempty"` // of the session from now on; absent: as it was
	KeepMs uint64  `json:"keepMs"`         // 0 gives the lease up

	// What happens while nobody has the session and a process has filled its retention;
	// absent: as without a lease.
	DetachedOutput *DetachedOutput `json:"detachedOutput,omitempty"`
}

// DetachedOutput says what happens to the output of a process without a connection that
// has filled its retention (PROTOCOL.md, "Keeping a session").
type DetachedOutput string

// The values of DetachedOutput.
const (
	BlockOutput DetachedOutput = "block" // the process waits
	EvictOutput DetachedOutput = "evict" // the server evicts the oldest output
)

// KeepResult is the answer to session/keep.
type KeepResult struct {
	KeepMs uint64 `json:"keepMs"` // granted
}

// MaxSessionName bounds the name of a session, in bytes.
const MaxSessionName = 64

func (p *KeepParams) check() error {
	if p.Name != nil && !IsSessionName(*p.Name) {
		return errors.New("`name` must have from 1 to 64 of the characters A-Z a-z 0-9 . _ @ -")
	}
	if p.DetachedOutput != nil && *p.DetachedOutput != BlockOutput && *p.DetachedOutput != EvictOutput {
		return errors.New("`detachedOutput` must be block or evict")
	}
	return nil
}

// IsSessionName reports whether a session can have this name: from 1 to MaxSessionName of
// the characters A-Z a-z 0-9 . _ @ -.
func IsSessionName(name string) bool {
	return name != "" && len(name) <= MaxSessionName &&
		strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@-") == ""
}

// EndSessionParams are the params of session/end.
type EndSessionParams struct {
	SessionID string `json:"sessionId" wire:"identifier"`
}

// NoSession as observeSessionId of initialize asks for a connection without a session.
const NoSession = ""

// SessionsResult is the answer to session/list: the sessions in the order in which they
// were created.
type SessionsResult struct {
	Sessions  []ListedSession `json:"sessions"`
	Truncated bool            `json:"truncated,omitempty"` // the last ones are left out, because there were too many
}

// ListedSession is one session of the server.
type ListedSession struct {
	SessionID   string       `json:"sessionId"`
	Name        string       `json:"name,omitempty"`
	ClientName  string       `json:"clientName"`          // of the connection that owns it, or owned it last
	Principal   string       `json:"principal,omitempty"` // whose it is, unless it is the caller's
	Own         bool         `json:"own"`                 // it belongs to the caller's principal
	CreatedAtMs int64        `json:"createdAtMs"`         // Unix milliseconds
	State       SessionState `json:"state"`
	EndsAtMs    int64        `json:"endsAtMs,omitempty"` // of a detached session, in Unix milliseconds, unless somebody comes back
	KeepMs      uint64       `json:"keepMs,omitempty"`   // its lease

	DetachedOutput *DetachedOutput `json:"detachedOutput,omitempty"` // of the lease

	Observers int `json:"observers"` // connections
	Processes int `json:"processes"` // that process/list lists, without those in the background
	Running   int `json:"running"`   // of these, those that have not exited
}

// ListedSessionValues is the largest number of JSON values of a ListedSession (see
// MaxValues).
const ListedSessionValues = 13

// SessionState says whether a session has a connection that owns it.
type SessionState string

// The values of SessionState.
const (
	SessionAttached SessionState = "attached"
	SessionDetached SessionState = "detached"
)
