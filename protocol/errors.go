package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Code is a JSON-RPC error code of this wire (PROTOCOL.md, "Errors").
type Code int

// The error codes. Clients act on NotFound and SessionAttached, and use TransportClosed for a
// broken connection. They must not depend on the text of a message.
const (
	CodeInvalidRequest  Code = -32600 // malformed message, wrong phase, refused request
	CodeMethodNotFound  Code = -32601 // unknown method
	CodeInvalidParams   Code = -32602 // invalid params
	CodeInternal        Code = -32603 // the system refused, or the server failed
	CodeTransportClosed Code = -32000 // never sent by a server
	CodeNotFound        Code = -32004 // a file or file handle does not exist
	CodeFileChanged     Code = -32005 // a file's content is not what the client expected
	CodeSessionAttached Code = -32010 // the session has another live connection
)

// Sentinel errors, one for each code. errors.Is compares codes, so it gives the same result
// for a received error and for one returned in-process.
var (
	ErrInvalidRequest  = &Error{Code: CodeInvalidRequest, Message: "invalid request"}
	ErrMethodNotFound  = &Error{Code: CodeMethodNotFound, Message: "method not found"}
	ErrInvalidParams   = &Error{Code: CodeInvalidParams, Message: "invalid params"}
	ErrInternal        = &Error{Code: CodeInternal, Message: "internal error"}
	ErrTransportClosed = &Error{Code: CodeTransportClosed, Message: "JSON-RPC transport closed"}
	ErrNotFound        = &Error{Code: CodeNotFound, Message: "not found"}
	ErrFileChanged     = &Error{Code: CodeFileChanged, Message: "file has changed"}
	ErrSessionAttached = &Error{Code: CodeSessionAttached, Message: "session is attached to another connection"}
)

// Error is an error on the wire.
type Error struct {
	Code    Code            `json:"code"`
	Message string          `json:"message"`        // for people; programs decide by Code
	Data    json.RawMessage `json:"data,omitempty"` // details that the code defines, such as FileChanged
}

func (e *Error) Error() string { return e.Message }

// Is compares codes, so that a more detailed text keeps its identity.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Errorf returns an Error with a formatted message, which Shorten bounds: it may quote
// what a peer sent.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: Shorten(fmt.Sprintf(format, args...))}
}

// maxText is how many bytes Shorten leaves of a text.
const maxText = 1 << 10

// Shorten replaces the middle of a text that is longer than 1 KiB with a note. It keeps the
// end, because the end of an error text is the cause.
func Shorten(text string) string {
	if len(text) <= maxText {
		return text
	}
	head, tail := maxText/2, len(text)-maxText/2
	for head > maxText/2-utf8.UTFMax && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text)-maxText/2+utf8.UTFMax && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return fmt.Sprintf("%s [%d bytes left out] %s", text[:head], tail-head, text[tail:])
}

// AsError returns the *Error inside err, or an internal error with err's text.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Errorf(CodeInternal, "%s", err)
}
