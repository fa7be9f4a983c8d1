package protocol

import "encoding/json"

// Version is what initialize answers as protocolVersion; only the oldest
// clients read it.
const Version = "exec-server.v0"

// Methods of the handshake (PROTOCOL.md, "Handshake").
const (
	MethodInitialize  = "initialize"
	MethodInitialized = "initialized" // notification
)

// Initialize are the params of initialize.
type Initialize struct {
	ClientName      string  `json:"clientName"`
	ResumeSessionID *string `json:"resumeSessionId,omitempty"`
}

// DecodeInitialize decodes the params of initialize.
func DecodeInitialize(raw json.RawMessage) (p Initialize, err error) {
	err = decodeParams(raw, "InitializeParams", func(f *fields) {
		p.ClientName = f.string("clientName")
		p.ResumeSessionID = f.optionalString("resumeSessionId")
	})
	return p, err
}

// InitializeResult is the union of what clients read from the answer.
type InitializeResult struct {
	ProtocolVersion string           `json:"protocolVersion"`
	SessionID       string           `json:"sessionId"`
	EnvironmentInfo *EnvironmentInfo `json:"environmentInfo,omitempty"`
}
