package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"execserver/internal/base64"
)

// fields are the members of one object. They keep the first error, so that a
// decoder can be written as a list of its members. Names are compared exactly.
type fields struct {
	members []member
	joined  bool // data of a binary message takes the place of a member
	err     error
	space   [12]member // of most objects
}

// fieldsOf splits raw, which must be an object of the named type; an absent or
// null raw is an error. raw has been validated as part of its message.
func fieldsOf(raw json.RawMessage, typeName string) (*fields, error) {
	if kind := kindOf(raw); kind != "map" {
		return nil, fmt.Errorf("invalid type: %s, expected struct %s", kind, typeName)
	}
	f := new(fields)
	var err error
	f.members, err = splitObject(raw, f.space[:0])
	return f, err
}

// get returns the value of name, nil when it is absent.
func (f *fields) get(name string) json.RawMessage {
	for i := range f.members {
		if string(f.members[i].name) == name {
			return f.members[i].value
		}
	}
	return nil
}

// required returns the value of name. Its absence is an error.
func (f *fields) required(name string) json.RawMessage {
	raw := f.get(name)
	if raw == nil {
		f.fail(fmt.Errorf("missing field `%s`", name))
	}
	return raw
}

// optional returns the value of name, nil when it is absent or null.
func (f *fields) optional(name string) json.RawMessage {
	raw := f.get(name)
	if isNull(raw) {
		return nil
	}
	return raw
}

// fail records the first error.
func (f *fields) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// parse hands raw, unless it is nil, to a decoder and keeps the error.
func parse[T any](f *fields, raw json.RawMessage, decode func(json.RawMessage) (T, error)) (v T) {
	if raw == nil || f.err != nil {
		return v
	}
	v, err := decode(raw)
	if err != nil {
		f.fail(err)
	}
	return v
}

func (f *fields) string(name string) string {
	return parse(f, f.required(name), decodeString)
}

// optionalString distinguishes absent or null (nil) from empty.
func (f *fields) optionalString(name string) *string {
	raw := f.optional(name)
	if raw == nil {
		return nil
	}
	s := parse(f, raw, decodeString)
	return &s
}

// boolOr refuses null, as the protocol does where a boolean has a default.
func (f *fields) boolOr(name string, absent bool) bool {
	raw := f.get(name)
	if raw == nil {
		return absent
	}
	return parse(f, raw, decodeBool)
}

// optionalBool lets null stand for absence.
func (f *fields) optionalBool(name string, absent bool) bool {
	raw := f.optional(name)
	if raw == nil {
		return absent
	}
	return parse(f, raw, decodeBool)
}

func (f *fields) integer(name string) int64 {
	return parse(f, f.required(name), func(raw json.RawMessage) (int64, error) {
		n, err := strconv.ParseInt(string(raw), 10, 64)
		if err != nil {
			return 0, expected(raw, "number", "i64")
		}
		return n, nil
	})
}

// kindOf names the JSON type of a value as error texts do.
func kindOf(raw json.RawMessage) string {
	if len(raw) == 0 {
		return "null"
	}
	switch raw[0] {
	case '{':
		return "map"
	case '[':
		return "sequence"
	case '"':
		return "string " + string(raw[:min(len(raw), 80)])
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}

func isNull(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == 'n' }

// expected explains why raw is not the wanted kind of value.
func expected(raw json.RawMessage, kind, wanted string) error {
	if got := kindOf(raw); got != kind {
		return fmt.Errorf("invalid type: %s, expected %s", got, wanted)
	}
	return errors.New("invalid number")
}

// textOf returns the text of a JSON string, without a copy when it holds no
// escapes.
func textOf(raw json.RawMessage) ([]byte, error) {
	if len(raw) == 0 || raw[0] != '"' {
		return nil, fmt.Errorf("invalid type: %s, expected a string", kindOf(raw))
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1], nil
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return []byte(s), err
}

func decodeString(raw json.RawMessage) (string, error) {
	text, err := textOf(raw)
	return string(text), err
}

// MaxIdentifierBytes bounds an identifier that a client chooses, because the server
// remembers many of them (PROTOCOL.md, "Limits").
const MaxIdentifierBytes = 256

func decodeIdentifier(raw json.RawMessage, name string) (string, error) {
	text, err := textOf(raw)
	if err == nil && len(text) > MaxIdentifierBytes {
		return "", fmt.Errorf("%s is %d bytes long, the limit is %d bytes", name, len(text), MaxIdentifierBytes)
	}
	return string(text), err
}

// decodeBase64 decodes a string of standard base64.
func decodeBase64(raw json.RawMessage) ([]byte, error) {
	text, err := textOf(raw)
	if err != nil {
		return nil, err
	}
	return base64.AppendDecode(make([]byte, 0, len(text)/4*3), text)
}

func decodeUnsigned(raw json.RawMessage) (uint64, error) {
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return 0, expected(raw, "number", "u64")
	}
	return n, nil
}

// decodeDimension decodes the rows or columns of a terminal.
func decodeDimension(raw json.RawMessage, name string) (uint16, error) {
	n, err := strconv.ParseUint(string(raw), 10, 64)
	switch {
	case err != nil:
		return 0, expected(raw, "number", "u16")
	case n < 1 || n > math.MaxUint16:
		return 0, fmt.Errorf("invalid value: integer `%d`, expected `%s` from 1 to %d", n, name, math.MaxUint16)
	}
	return uint16(n), nil
}

func decodeFloat(raw json.RawMessage) (float64, error) {
	n, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return 0, expected(raw, "number", "f64")
	}
	return n, nil
}

func decodeBool(raw json.RawMessage) (bool, error) {
	if kind := kindOf(raw); kind != "boolean" {
		return false, fmt.Errorf("invalid type: %s, expected a boolean", kind)
	}
	return raw[0] == 't', nil
}

func decodeItems(raw json.RawMessage) (items []json.RawMessage, err error) {
	if kind := kindOf(raw); kind != "sequence" {
		return nil, fmt.Errorf("invalid type: %s, expected a sequence", kind)
	}
	err = json.Unmarshal(raw, &items)
	return items, err
}

func decodeList[T any](raw json.RawMessage, decode func(json.RawMessage) (T, error)) ([]T, error) {
	items, err := decodeItems(raw)
	if err != nil {
		return nil, err
	}
	list := make([]T, len(items))
	for i, item := range items {
		if list[i], err = decode(item); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func decodeStringMap(raw json.RawMessage) (map[string]string, error) {
	if kind := kindOf(raw); kind != "map" {
		return nil, fmt.Errorf("invalid type: %s, expected a map", kind)
	}
	members, err := splitObject(raw, nil)
	if err != nil {
		return nil, err
	}
	m := make(map[string]string, len(members))
	for _, member := range members {
		if m[string(member.name)], err = decodeString(member.value); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func decodePath(raw json.RawMessage) (p Path, err error) {
	err = p.decode(raw)
	return p, err
}

func (p *Path) decode(raw json.RawMessage) error {
	s, err := decodeString(raw)
	if err == nil {
		*p, err = ParsePath(s)
	}
	return err
}
