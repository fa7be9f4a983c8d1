package protocol

import (
	"errors"
	"strings"
)

// Version is protocolVersion in the answer to initialize. Only the oldest clients read
// it.
const Version = "exec-server.v0"

// Methods of the handshake (PROTOCOL.md, "Handshake") and of watching a session
// (EXTENSIONS.md, "sessionObserve").
const (
	MethodInitialize  = "initialize"
	MethodInitialized = "initialized" // notification
	MethodTakeOver    = "session/takeOver"

	NotificationInitializeProgress = "initialize/progress"

	NotificationTakenOver    = "session/takenOver"
	NotificationSessionEnded = "session/ended"
)

// ForObservers reports whether an observer may call a method. Observers may only read, and
// take the session over (EXTENSIONS.md, "sessionObserve").
func ForObservers(method string) bool {
	switch method {
	case MethodEnvironmentInfo, MethodEnvironmentStatus, MethodRead, MethodReadBackground, MethodWait, MethodSnapshot, MethodScreen,
		MethodList, MethodUsage, MethodSessions, MethodRecordings, MethodReadRecording, MethodTakeOver:
		return true
	}
	return false
}

// InitializeParams are the params of initialize. At most one of the two ids may be set.
type InitializeParams struct {
	ClientName       string             `json:"clientName" wire:"identifier"`                 // for logs and lists of sessions
	ResumeSessionID  *string            `json:"resumeSessionId,omitempty" wire:"identifier"`  // the session to resume
	ObserveSessionID *string            `json:"observeSessionId,omitempty" wire:"identifier"` // the session to observe; "" opens a connection without a session
	Capabilities     ClientCapabilities `json:"capabilities,omitzero" wire:"optional"`        // what the client asks for
}

func (p *InitializeParams) check() error {
	if p.ResumeSessionID != nil && p.ObserveSessionID != nil {
		return errors.New("`resumeSessionId` and `observeSessionId` exclude each other")
	}
	return nil
}

// ClientCapabilities are the optional features that a client accepts. The server does not use
// the others.
type ClientCapabilities struct {
	BinaryFrames  bool `json:"binaryFrames,omitempty" wire:"absent=false"`  // the client accepts binary messages
	Compress      bool `json:"compress,omitempty" wire:"absent=false"`      // the client accepts compressed binary messages
	ProcessAck    bool `json:"processAck,omitempty" wire:"absent=false"`    // the client acknowledges events itself, with process/ack
	ProcessEvents bool `json:"processEvents,omitempty" wire:"absent=false"` // the client accepts process/started, failed and dropped
}

// InitializeResult is the answer to initialize. Older clients read fewer members.
type InitializeResult struct {
	ProtocolVersion string           `json:"protocolVersion"`           // always exec-server.v0
	SessionID       string           `json:"sessionId"`                 // the session, new or resumed; "" for a connection without one
	EnvironmentInfo *EnvironmentInfo `json:"environmentInfo,omitempty"` // the server's machine
}

// InitializeProgressParams are the params of initialize/progress: how much of the server
// program has been uploaded to the remote machine.
type InitializeProgressParams struct {
	Bytes uint64 `json:"bytes"` // the bytes that have arrived
	Total uint64 `json:"total"` // the bytes in all
}

// SessionEndedParams are the params of session/ended.
type SessionEndedParams struct {
	SessionID string `json:"sessionId"`
}

// TakenOverParams are the params of session/takenOver.
type TakenOverParams struct {
	SessionID string `json:"sessionId"`
}

// Methods about whole sessions, unknown to released clients (EXTENSIONS.md, "sessionKeep",
// "sessionList", "sessionControl").
const (
	MethodKeep       = "session/keep"
	MethodSessions   = "session/list"
	MethodEndSession = "session/end"
)

// SessionLifetime is how long the server keeps a session without a connection, in
// milliseconds (PROTOCOL.md, "Sessions").
type SessionLifetime struct {
	DetachedMs uint64 `json:"detachedMs"` // after the connection broke or was closed
	SilentMs   uint64 `json:"silentMs"`   // after the peer fell silent
	MaxKeepMs  uint64 `json:"maxKeepMs"`  // the longest lease; 0 means that leases are disabled
}

// KeepParams are the params of session/keep.
type KeepParams struct {
	Name   *string `json:"name,omitempty"` // new name of the session; nil keeps the current one
	KeepMs uint64  `json:"keepMs"`         // length of the lease; 0 ends it

	// DetachedOutput applies while the session has no connection; nil means the default.
	DetachedOutput *DetachedOutput `json:"detachedOutput,omitempty"`
}

// DetachedOutput selects what happens when a process of a session without a connection has
// filled its retention (EXTENSIONS.md, "sessionKeep").
type DetachedOutput string

// The values of DetachedOutput.
const (
	BlockOutput DetachedOutput = "block" // the process waits
	EvictOutput DetachedOutput = "evict" // the server evicts the oldest output
)

// KeepResult is the answer to session/keep.
type KeepResult struct {
	KeepMs uint64 `json:"keepMs"` // the length of the lease that the server grants
}

// MaxSessionName is the maximum length of the name of a session in bytes.
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

// IsSessionName reports whether name is valid for a session: 1 to MaxSessionName of the
// characters A-Z a-z 0-9 . _ @ -.
func IsSessionName(name string) bool {
	return name != "" && len(name) <= MaxSessionName &&
		strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@-") == ""
}

// EndSessionParams are the params of session/end.
type EndSessionParams struct {
	SessionID string `json:"sessionId" wire:"identifier"`
}

// NoSession, as InitializeParams.ObserveSessionID, requests a connection without a session.
const NoSession = ""

// SessionsResult is the answer to session/list: the sessions in the order in which they
// were created.
type SessionsResult struct {
	Sessions  []ListedSession `json:"sessions"`            // in the order in which they were created
	Truncated bool            `json:"truncated,omitempty"` // there were too many; the last ones are omitted
}

// ListedSession is one session of the server.
type ListedSession struct {
	SessionID   string       `json:"sessionId"`
	Name        string       `json:"name,omitempty"`      // absent if it has none
	ClientName  string       `json:"clientName"`          // the name of the client that owns it, or owned it last
	Principal   string       `json:"principal,omitempty"` // the owner, unless it is the caller's
	Own         bool         `json:"own"`                 // it belongs to the caller's principal
	CreatedAtMs int64        `json:"createdAtMs"`         // in Unix milliseconds
	State       SessionState `json:"state"`
	EndsAtMs    int64        `json:"endsAtMs,omitempty"` // expiry of a detached session, in Unix milliseconds
	KeepMs      uint64       `json:"keepMs,omitempty"`   // the length of its lease

	DetachedOutput *DetachedOutput `json:"detachedOutput,omitempty"` // of the lease

	Observers int `json:"observers"` // the number of connections that observe it
	Processes int `json:"processes"` // the number that process/list lists, without those in the background
	Running   int `json:"running"`   // the number of these that have not exited
}

// ListedSessionValues is the largest number of JSON values of a ListedSession (see
// MaxValues).
const ListedSessionValues = 13

// SessionState is whether a session has an owning connection.
type SessionState string

// The values of SessionState.
const (
	SessionAttached SessionState = "attached"
	SessionDetached SessionState = "detached"
)

// MethodWebLink returns a link to the web page of the server (EXTENSIONS.md, "webLink").
const MethodWebLink = "web/link"

// WebLinkResult is the answer to web/link.
type WebLinkResult struct {
	Path   string `json:"path"`   // the path of the page, with a fragment that signs a browser in once
	LifeMs uint64 `json:"lifeMs"` // how long the link is valid, in milliseconds
}
