// Package protocol defines the messages of the exec-server protocol: the envelope, the names
// of methods and notifications, their parameters and results, and the error codes. It does
// no I/O and starts no goroutines. PROTOCOL.md and EXTENSIONS.md, at the root of
// the repository, are the specification.
//
// [ParseMessage] parses a received message, and [DecodeParams] the parameters of a method,
// such as [StartParams] for process/start. The Append functions append encoded messages to a slice
// and return it, as append does. Decoding is strict about required members, types and base64, and
// ignores unknown members.
//
// A field is required, unless it is a pointer or a json.RawMessage. The tag wire refines that:
// "optional" permits null and an absent member, "absent=V" and "optional=V" mean V then, "or=N"
// also accepts the older name N, "enum=A|B" lists the values, "identifier" limits the length,
// "bulk" is data that a binary message carries, and "-" is not decoded.
//
// Most programs need only package client.
package protocol

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// ID identifies a request: a string or a signed 64-bit integer. The reply has the same
// type and value. IDs are comparable. The zero value is not an id.
type ID struct {
	text   string
	number int64
	kind   idKind
}

type idKind byte

const (
	noID idKind = iota
	numberID
	textID
)

// NumberID returns the id n.
func NumberID(n int64) ID { return ID{number: n, kind: numberID} }

// TextID returns the id s.
func TextID(s string) ID { return ID{text: s, kind: textID} }

// MalformedID is the id in the error response to a message that cannot be parsed
// (PROTOCOL.md, "Malformed input").
var MalformedID = NumberID(-1)

// IsZero reports whether id is the zero value, which is not an id.
func (id ID) IsZero() bool { return id.kind == noID }

func (id ID) String() string {
	if id.kind == textID {
		return strconv.Quote(id.text)
	}
	return strconv.FormatInt(id.number, 10)
}

func (id ID) append(b []byte) []byte {
	if id.kind == textID {
		return appendString(b, id.text)
	}
	return strconv.AppendInt(b, id.number, 10)
}

func parseID(raw json.RawMessage) (ID, error) {
	if raw[0] == '"' {
		s, err := decodeIdentifier(raw)
		return TextID(s), err
	}
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return NumberID(n), nil
	}
	return ID{}, expected("a string or a 64-bit integer", raw)
}

// MaxAnswerBytes is the size of the largest answer that released clients accept
// (PROTOCOL.md, "Limits").
const MaxAnswerBytes = 64 << 20

// Kind is the kind of a Message.
type Kind byte

// The kinds of message.
const (
	Request Kind = iota + 1
	Notification
	Response
	ErrorResponse
)

// Message is a parsed envelope (PROTOCOL.md, "Messages"). Params and Result point into the
// parsed text, and are valid as long as it is.
type Message struct {
	Kind   Kind
	ID     ID              // request, response, error response
	Method string          // request, notification
	Params json.RawMessage // request, notification; nil when absent
	Result json.RawMessage // response
	Data   []byte          // of a binary message; nil for JSON, where it is a member of Params or Result
	Error  *Error          // error response
	Trace  TraceContext    // request
}

// TraceContext is the W3C trace context that a request carries (PROTOCOL.md, "Messages").
// The zero value means none. The strings are not validated.
type TraceContext struct{ Parent, State string } // traceparent and tracestate

// ParseMessage parses one envelope. The error is always a *SyntaxError.
func ParseMessage(data []byte) (Message, error) {
	var space [8]member
	members, err := scanObject(data, space[:0])
	if err != nil {
		return Message{}, err
	}
	var m Message
	var id, method, result, failure, trace json.RawMessage
	for _, member := range members {
		switch string(member.name) {
		case "id":
			id = member.value
		case "method":
			method = member.value
		case "params":
			m.Params = member.value
		case "result":
			result = member.value
		case "error":
			failure = member.value
		case "trace":
			trace = member.value
		}
	}
	if id != nil {
		if m.ID, err = parseID(id); err != nil {
			return Message{}, asSyntaxError(at("id", err))
		}
	}
	switch {
	case method != nil:
		m.Kind = Notification
		if id != nil {
			m.Kind = Request
			m.Trace, err = decodeTrace(trace)
			err = at("trace", err)
		}
		if err == nil {
			m.Method, err = decodeString(method)
			err = at("method", err)
		}
	case id != nil && result != nil:
		m.Kind, m.Result = Response, result
	case id != nil && failure != nil:
		m.Kind = ErrorResponse
		m.Error, err = decodeError(failure)
		err = at("error", err)
	default:
		err = &SyntaxError{"a message has a method, or an id and a result or an error"}
	}
	if err != nil {
		return Message{}, asSyntaxError(err)
	}
	return m, nil
}

// decodeTrace accepts nothing, null, or an object whose known members are strings.
func decodeTrace(raw json.RawMessage) (t TraceContext, err error) {
	if raw == nil || isNull(raw) {
		return t, nil
	}
	f, err := fieldsOf(raw)
	if err != nil {
		return t, err
	}
	if parent := f.optionalString("traceparent"); parent != nil {
		t.Parent = *parent
	}
	if state := f.optionalString("tracestate"); state != nil {
		t.State = *state
	}
	return t, f.err
}

func decodeError(raw json.RawMessage) (*Error, error) {
	f, err := fieldsOf(raw)
	if err != nil {
		return nil, err
	}
	e := &Error{Code: Code(f.integer("code")), Message: f.string("message")}
	if data := f.get("data"); data != nil {
		e.Data = append(json.RawMessage(nil), data...)
	}
	return e, f.err
}

func asSyntaxError(err error) error {
	if e, ok := err.(*SyntaxError); ok {
		return e
	}
	return &SyntaxError{err.Error()}
}

// GuessID finds the id of a message that is truncated or malformed, so that an error response
// can name the request. It returns MalformedID if prefix does not contain the id. answer is
// true if the message is a response rather than a request.
func GuessID(prefix []byte) (id ID, answer bool) {
	if IsBinary(prefix) {
		prefix = guessHead(prefix)
	}
	s := scanner{data: prefix}
	s.space()
	if s.pos == len(prefix) || prefix[s.pos] != '{' {
		return MalformedID, false
	}
	id = MalformedID
	request, whole := false, 0
	see := func(name []byte) {
		switch string(name) {
		case "method":
			request = true
		case "result", "error":
			answer = true
		}
	}
	// The object is incomplete, so the scan fails. The members before the failure are
	// complete, and the name of the next one may have been scanned.
	_ = s.object(1, func(m member) {
		whole++
		see(m.name)
		if string(m.name) != "id" {
			return
		}
		if parsed, err := parseID(m.value); err == nil {
			id = parsed
		}
	})
	if whole < len(s.names) {
		see(s.names[whole])
	}
	return id, answer && !request
}

// AppendRequest appends a request. If params is nil, the member is omitted.
func AppendRequest(b []byte, id ID, method string, params any) ([]byte, error) {
	b = append(b, `{"id":`...)
	b = id.append(b)
	b = append(b, `,"method":`...)
	b = appendString(b, method)
	return appendTail(b, `,"params":`, params)
}

// AppendNotification appends a notification. If params is nil, the member is omitted.
func AppendNotification(b []byte, method string, params any) ([]byte, error) {
	b = append(b, `{"method":`...)
	b = appendString(b, method)
	return appendTail(b, `,"params":`, params)
}

// AppendResponse appends the response to the request id.
func AppendResponse(b []byte, id ID, result any) ([]byte, error) {
	b = append(b, `{"id":`...)
	b = id.append(b)
	if result == nil {
		return append(b, `,"result":null}`...), nil
	}
	return appendTail(b, `,"result":`, result)
}

// BeginResponse returns the beginning of the response to the request id, with capacity for a
// result of n bytes. The caller must append the result and a closing brace.
func BeginResponse(id ID, n int) []byte {
	return AppendResult(make([]byte, 0, n+len(id.text)+64), id)
}

// AppendResult appends the response to the request id up to the value of its result. The
// caller must append the result and a closing brace.
func AppendResult(b []byte, id ID) []byte {
	b = append(b, `{"id":`...)
	b = id.append(b)
	return append(b, `,"result":`...)
}

// AppendErrorResponse appends the error response to the request id.
func AppendErrorResponse(b []byte, id ID, e *Error) []byte {
	b = append(b, `{"error":`...)
	b = e.appendJSON(b)
	b = append(b, `,"id":`...)
	b = id.append(b)
	return append(b, '}')
}

func (e *Error) appendJSON(b []byte) []byte {
	b = append(b, `{"code":`...)
	b = strconv.AppendInt(b, int64(e.Code), 10)
	b = append(b, `,"message":`...)
	b = appendString(b, e.Message)
	if e.Data != nil {
		b = append(b, `,"data":`...)
		b = append(b, e.Data...)
	}
	return append(b, '}')
}

// Appender is implemented by values that append their JSON encoding to a buffer. Large and
// frequent messages use it to avoid the reflection and the extra copy of encoding/json.
type Appender interface {
	AppendJSON(b []byte) []byte
}

func appendTail(b []byte, name string, v any) ([]byte, error) {
	if v == nil {
		return append(b, '}'), nil
	}
	b = append(b, name...)
	if a, ok := v.(Appender); ok {
		return append(a.AppendJSON(b), '}'), nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return append(append(b, text...), '}'), nil
}

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string; bytes that are not UTF-8 become
// U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x80 {
			return append(append(b, encodeRest(s[from:])...), '"')
		}
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(append(b, s[from:]...), '"')
}

// encodeRest uses the standard library for text beyond ASCII.
func encodeRest(s string) []byte {
	text, err := json.Marshal(s)
	if err != nil {
		panic("protocol: a string always encodes: " + err.Error())
	}
	return text[1 : len(text)-1]
}
