package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"execserver/internal/base64"
)

// fields reads the members of one object and keeps the first error, so that a
// decoder can be written as a list of its members. Names are compared exactly:
// encoding/json would also take "ProcessId" for "processId", and would leave a
// missing required member unnoticed.
type fields struct {
	members []member
	err     error
}

// fieldsOf splits raw, which must be an object of the named type; an absent or
// null raw is an error. raw has been validated as part of its message.
func fieldsOf(raw json.RawMessage, typeName string) (*fields, error) {
	if kind := kindOf(raw); kind != "map" {
		return nil, fmt.Errorf("invalid type: %s, expected struct %s", kind, typeName)
	}
	var space [12]member
	members, err := splitObject(raw, space[:0])
	if err != nil {
		return nil, err
	}
	return &fields{members: members}, nil
}

// decodeParams decodes the params of a method. The error is always an *Error
// with the code InvalidParams.
func decodeParams(raw json.RawMessage, typeName string, decode func(*fields)) error {
	f, err := fieldsOf(raw, typeName)
	if err != nil {
		return Errorf(CodeInvalidParams, "%s", err)
	}
	decode(f)
	return f.invalidParams()
}

func (f *fields) invalidParams() error {
	if f.err == nil {
		return nil
	}
	var coded *Error
	if errors.As(f.err, &coded) {
		return coded
	}
	return Errorf(CodeInvalidParams, "%s", f.err)
}

// get returns the value of name, nil when it is absent.
func (f *fields) get(name string) json.RawMessage { return f.member(name).value }

func (f *fields) member(name string) member {
	for _, m := range f.members {
		if string(m.name) == name {
			return m
		}
	}
	return member{}
}

// required returns the value of name and notes its absence as an error.
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

// fail notes an error, unless it is nil or there is one already.
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

// text is string without a copy, unless the string holds escapes.
func (f *fields) text(name string) []byte {
	m := f.member(name)
	if len(m.value) > 0 && m.value[0] == '"' && !m.escaped {
		return m.value[1 : len(m.value)-1]
	}
	return parse(f, f.required(name), textOf)
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

// identifier reads a name that the client chooses.
func (f *fields) identifier(name string) string {
	return parse(f, f.required(name), decodeIdentifier(name))
}

// optionalIdentifier distinguishes absent or null (nil) from empty.
func (f *fields) optionalIdentifier(name string) *string {
	raw := f.optional(name)
	if raw == nil {
		return nil
	}
	s := parse(f, raw, decodeIdentifier(name))
	return &s
}

func (f *fields) bool(name string) bool {
	return parse(f, f.required(name), decodeBool)
}

// boolOr refuses null, which the wire does where a default exists.
func (f *fields) boolOr(name string, absent bool) bool {
	raw := f.get(name)
	if raw == nil {
		return absent
	}
	return parse(f, raw, decodeBool)
}

// optionalBool takes null for absence.
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

// optionalUnsigned distinguishes absent or null (nil) from zero.
func (f *fields) optionalUnsigned(name string) *uint64 {
	raw := f.optional(name)
	if raw == nil {
		return nil
	}
	n := parse(f, raw, decodeUnsigned)
	return &n
}

// optionalNumber distinguishes absent or null (nil) from zero.
func (f *fields) optionalNumber(name string) *float64 {
	raw := f.optional(name)
	if raw == nil {
		return nil
	}
	n := parse(f, raw, func(raw json.RawMessage) (float64, error) {
		n, err := strconv.ParseFloat(string(raw), 64)
		if err != nil {
			return 0, expected(raw, "number", "f64")
		}
		return n, nil
	})
	return &n
}

func (f *fields) unsigned(name string) uint64 {
	return parse(f, f.required(name), decodeUnsigned)
}

func (f *fields) strings(name string) []string {
	return parse(f, f.required(name), decodeStrings)
}

func (f *fields) stringMap(name string) map[string]string {
	return parse(f, f.required(name), func(raw json.RawMessage) (map[string]string, error) {
		if kind := kindOf(raw); kind != "map" {
			return nil, fmt.Errorf("invalid type: %s, expected a map", kind)
		}
		members, err := splitObject(raw, nil)
		if err != nil {
			return nil, err
		}
		m := make(map[string]string, len(members))
		for _, member := range members {
			value, err := decodeString(member.value)
			if err != nil {
				return nil, err
			}
			m[string(member.name)] = value
		}
		return m, nil
	})
}

func (f *fields) path(name string) Path {
	return parse(f, f.required(name), decodePath)
}

// base64 decodes the standard base64 of a required string.
func (f *fields) base64(name string) []byte {
	text := f.text(name)
	if f.err != nil {
		return nil
	}
	data, err := base64.AppendDecode(make([]byte, 0, len(text)/4*3), text)
	f.fail(err)
	return data
}

// raw keeps a copy of an optional member that this package does not look into.
func (f *fields) raw(name string) json.RawMessage {
	raw := f.optional(name)
	if raw == nil {
		return nil
	}
	return append(json.RawMessage(nil), raw...)
}

// kindOf names the JSON type of a value as the wire's error texts do.
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

// MaxIdentifierBytes is how long an identifier may be that a client chooses: the
// server remembers many of them (PROTOCOL.md, "Limits").
const MaxIdentifierBytes = 256

// decodeIdentifier makes the decoder of an identifier with this name.
func decodeIdentifier(name string) func(json.RawMessage) (string, error) {
	return func(raw json.RawMessage) (string, error) {
		text, err := textOf(raw)
		if err != nil {
			return "", err
		}
		if len(text) > MaxIdentifierBytes {
			return "", fmt.Errorf("%s is %d bytes long, the limit is %d bytes", name, len(text), MaxIdentifierBytes)
		}
		return string(text), nil
	}
}

func decodeUnsigned(raw json.RawMessage) (uint64, error) {
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return 0, expected(raw, "number", "u64")
	}
	return n, nil
}

func decodeBool(raw json.RawMessage) (bool, error) {
	if kind := kindOf(raw); kind != "boolean" {
		return false, fmt.Errorf("invalid type: %s, expected a boolean", kind)
	}
	return raw[0] == 't', nil
}

func decodeStrings(raw json.RawMessage) ([]string, error) {
	return decodeList(raw, decodeString)
}

func decodeList[T any](raw json.RawMessage, decode func(json.RawMessage) (T, error)) ([]T, error) {
	if kind := kindOf(raw); kind != "sequence" {
		return nil, fmt.Errorf("invalid type: %s, expected a sequence", kind)
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return nil, err
	}
	list := make([]T, len(items))
	for i, item := range items {
		v, err := decode(item)
		if err != nil {
			return nil, err
		}
		list[i] = v
	}
	return list, nil
}

func decodePath(raw json.RawMessage) (Path, error) {
	s, err := decodeString(raw)
	if err != nil {
		return Path{}, err
	}
	return ParsePath(s)
}
