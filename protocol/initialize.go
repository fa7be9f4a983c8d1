package protocol

import (
	"encoding/json"
	"errors"
)

// Version is what initialize answers as protocolVersion; only the oldest
// clients read it.
const Version = "exec-server.v0"

// Methods of the handshake (PROTOCOL.md, "Handshake") and of watching a session
// (PROTOCOL.md, "Observing").
const (
	MethodInitialize  = "initialize"
	MethodInitialized = "initialized" // notification
	MethodTakeOver    = "session/takeOver"

	NotificationTakenOver = "session/takenOver"
)

// Initialize are the params of initialize. At most one of the two ids is given.
type Initialize struct {
	ClientName       string             `json:"clientName"`
	ResumeSessionID  *string            `json:"resumeSessionId,omitempty"`
	ObserveSessionID *string            `json:"observeSessionId,omitempty"`
	Capabilities     ClientCapabilities `json:"capabilities,omitzero"`
}

// ClientCapabilities are what a client asks for; none of it is sent to a client
// that does not.
type ClientCapabilities struct {
	ProcessAck    bool `json:"processAck,omitempty"`    // it acknowledges events itself, by process/ack
	ProcessEvents bool `json:"processEvents,omitempty"` // it takes process/started, failed and dropped
}

// DecodeInitialize decodes the params of initialize.
func DecodeInitialize(raw json.RawMessage) (p Initialize, err error) {
	err = decodeParams(raw, "InitializeParams", func(f *fields) {
		p.ClientName = f.identifier("clientName")
		p.ResumeSessionID = f.optionalIdentifier("resumeSessionId")
		p.ObserveSessionID = f.optionalIdentifier("observeSessionId")
		if p.ResumeSessionID != nil && p.ObserveSessionID != nil {
			f.fail(errors.New("`resumeSessionId` and `observeSessionId` exclude each other"))
		}
		if raw := f.optional("capabilities"); raw != nil {
			p.Capabilities = parse(f, raw, decodeClientCapabilities)
		}
	})
	return p, err
}

func decodeClientCapabilities(raw json.RawMessage) (ClientCapabilities, error) {
	f, err := fieldsOf(raw, "ClientCapabilities")
	if err != nil {
		return ClientCapabilities{}, err
	}
	c := ClientCapabilities{
		ProcessAck:    f.boolOr("processAck", false),
		ProcessEvents: f.boolOr("processEvents", false),
	}
	return c, f.err
}

// InitializeResult is the union of what clients read from the answer.
type InitializeResult struct {
	ProtocolVersion string           `json:"protocolVersion"`
	SessionID       string           `json:"sessionId"`
	EnvironmentInfo *EnvironmentInfo `json:"environmentInfo,omitempty"`
}

// TakenOver are the params of session/takenOver.
type TakenOver struct {
	SessionID string `json:"sessionId"`
}
