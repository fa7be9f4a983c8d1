package protocol

import "errors"

// Version is protocolVersion in the answer to initialize. Only the oldest clients read
// it.
const Version = "exec-server.v0"

// Methods of the handshake (PROTOCOL.md, "Handshake") and of watching a session
// (PROTOCOL.md, "Observing").
const (
	MethodInitialize  = "initialize"
	MethodInitialized = "initialized" // notification
	MethodTakeOver    = "session/takeOver"

	NotificationInitializeProgress = "initialize/progress"

	NotificationTakenOver    = "session/takenOver"
	NotificationSessionEnded = "session/ended"
)

// ForObservers reports whether an observer may call a method: one that changes nothing, or
// takes the session over (PROTOCOL.md, "Observing").
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
	ClientName       string             `json:"clientName" wire:"identifier"`
	ResumeSessionID  *string            `json:"resumeSessionId,omitempty" wire:"identifier"`
	ObserveSessionID *string            `json:"observeSessionId,omitempty" wire:"identifier"` // or NoSession
	Capabilities     ClientCapabilities `json:"capabilities,omitzero" wire:"optional"`
}

func (p *InitializeParams) check() error {
	if p.ResumeSessionID != nil && p.ObserveSessionID != nil {
		return errors.New("`resumeSessionId` and `observeSessionId` exclude each other")
	}
	return nil
}

// ClientCapabilities are what a client asks for. The server sends none of it to a client
// that does not ask.
type ClientCapabilities struct {
	BinaryFrames  bool `json:"binaryFrames,omitempty" wire:"absent=false"`  // the client accepts binary messages
	Compress      bool `json:"compress,omitempty" wire:"absent=false"`      // the client accepts compressed binary messages
	ProcessAck    bool `json:"processAck,omitempty" wire:"absent=false"`    // the client acknowledges events itself, with process/ack
	ProcessEvents bool `json:"processEvents,omitempty" wire:"absent=false"` // the client accepts process/started, failed and dropped
}

// InitializeResult has all members of the answer that any client reads.
type InitializeResult struct {
	ProtocolVersion string           `json:"protocolVersion"`
	SessionID       string           `json:"sessionId"`
	EnvironmentInfo *EnvironmentInfo `json:"environmentInfo,omitempty"`
}

// InitializeProgressParams are the params of initialize/progress: how much of the server has
// arrived on the other machine.
type InitializeProgressParams struct {
	Bytes uint64 `json:"bytes"`
	Total uint64 `json:"total"`
}

// SessionEndedParams are the params of session/ended.
type SessionEndedParams struct {
	SessionID string `json:"sessionId"`
}

// TakenOverParams are the params of session/takenOver.
type TakenOverParams struct {
	SessionID string `json:"sessionId"`
}
