package protocol

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// A binary message (EXTENSIONS.md, "binaryFrames") carries the data of one member without
// base64. It consists of a format byte, the length of the JSON message without that member,
// the JSON message, and the data.

// formatPlain begins a binary message. JSON never begins with this byte.
const formatPlain = 0

// IsBinary reports whether a message is binary.
func IsBinary(msg []byte) bool { return len(msg) > 0 && msg[0] <= formatPlain }

// bulk is implemented by values with one member of data, which is base64 in JSON.
type bulk interface {
	Appender
	// split returns the value without the member, and the data. ok is false if the data is
	// encoded already.
	split() (head Appender, data []byte, ok bool)
}

// Split splits params or a result into the JSON and the data of a binary message. ok is false
// if v has no data.
func Split(v any) (head Appender, data []byte, ok bool) {
	b, ok := v.(bulk)
	if !ok {
		return nil, nil, false
	}
	return b.split()
}

// AppendBinary appends a binary message. head is its JSON without the data member. The caller
// may append more data.
func AppendBinary(b, head, data []byte) []byte {
	b = append(b, formatPlain)
	b = binary.AppendUvarint(b, uint64(len(head)))
	b = append(b, head...)
	return append(b, data...)
}

// ParseBinary parses a binary message. Its Data points into msg, as Params and Result do.
// The error is always a *SyntaxError.
func ParseBinary(msg []byte) (Message, error) {
	head, data, err := splitBinary(msg)
	if err != nil {
		return Message{}, err
	}
	m, err := ParseMessage(head)
	if err != nil {
		return Message{}, err
	}
	if m.Kind == ErrorResponse {
		return Message{}, &SyntaxError{"an error has no member for the data of a binary message"}
	}
	m.Data = data
	return m, nil
}

// splitBinary returns the JSON and the data of a binary message. The data is not nil.
func splitBinary(msg []byte) (head, data []byte, err error) {
	if !IsBinary(msg) {
		return nil, nil, &SyntaxError{"the message is not binary"}
	}
	length, n := binary.Uvarint(msg[1:])
	rest := msg[1+max(n, 0):]
	switch {
	case n <= 0:
		return nil, nil, &SyntaxError{"a binary message does not have the length of its JSON"}
	case length > uint64(len(rest)):
		return nil, nil, &SyntaxError{fmt.Sprintf("a binary message of %d bytes has no %d bytes of JSON", len(msg), length)}
	}
	return rest[:length:length], rest[length:], nil
}

// guessHead returns the JSON in the beginning of a binary message, as far as it goes.
func guessHead(prefix []byte) []byte {
	length, n := binary.Uvarint(prefix[1:])
	if n <= 0 {
		return nil
	}
	head := prefix[1+n:]
	return head[:min(uint64(len(head)), length)]
}

// DecodeResult decodes the result of a message that may be binary. data is its Message.Data,
// into which the data field of the result then points.
func DecodeResult(raw json.RawMessage, data []byte, result any) error {
	err := json.Unmarshal(raw, result)
	if err == nil && data != nil {
		err = join(result, data)
	}
	return err
}

// join sets the data member. v is a pointer to a bulk value.
func join(v any, data []byte) error {
	b, ok := v.(interface{ join(data []byte) })
	if !ok {
		return errors.New("a binary message has data, and this message takes none")
	}
	b.join(data)
	return nil
}

// WithData returns the params or the result of a binary message as JSON, with the data as
// base64 in a member with the given name.
func WithData(head json.RawMessage, name string, data []byte) json.RawMessage {
	b := make([]byte, 0, len(head)+len(name)+Base64Len(len(data))+8)
	head = head[:bytes.LastIndexByte(head, '}')]
	b = append(b, head...)
	if head = bytes.TrimSpace(head); len(head) > 1 {
		b = append(b, ',')
	}
	b = append(b, '"')
	b = append(b, name...)
	b = append(b, `":"`...)
	b = AppendBase64(b, data)
	return append(b, `"}`...)
}

// The values with data.

func (p WriteParams) split() (Appender, []byte, bool) { return headOf(p.appendHead), p.Chunk, true }
func (p *WriteParams) join(data []byte)               { p.Chunk = data }

func (p WriteBlockParams) split() (Appender, []byte, bool) {
	return headOf(p.appendHead), p.Chunk, true
}
func (p *WriteBlockParams) join(data []byte) { p.Chunk = data }

func (p WriteFileParams) split() (Appender, []byte, bool) {
	return headOf(p.appendHead), p.Data, p.DataBase64 == nil
}
func (p *WriteFileParams) join(data []byte) { p.Data = data }

func (r ReadFileResult) split() (Appender, []byte, bool) {
	return headOf(func(b []byte) []byte { return append(b, '{') }), r.Data, true
}
func (r *ReadFileResult) join(data []byte) { r.Data = data }

func (r ReadBlockResult) split() (Appender, []byte, bool) {
	return headOf(func(b []byte) []byte { return r.appendEOF(append(b, '{')) }), r.Chunk, true
}
func (r *ReadBlockResult) join(data []byte) { r.Chunk = data }

func (o *Output) join(data []byte) { o.Data = data }

// headOf appends an object without its last brace.
type headOf func(b []byte) []byte

// AppendJSON implements Appender.
func (f headOf) AppendJSON(b []byte) []byte { return append(f(b), '}') }
