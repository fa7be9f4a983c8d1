package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A memberError is an error about one value of the params.
type memberError struct {
	path string // from the outermost object to the value, such as "size.rows" or "argv[1]"
	err  error
}

func (e *memberError) Error() string { return e.path + ": " + e.err.Error() }
func (e *memberError) Unwrap() error { return e.err }

// at adds the name of a member, or an index such as "[1]", to an error of its value. An
// *Error stays as it is.
func at(name string, err error) error {
	switch e := err.(type) {
	case nil, *Error:
		return err
	case *memberError:
		if e.path[0] != '[' {
			name += "."
		}
		return &memberError{name + e.path, e.err}
	}
	return &memberError{name, err}
}

func missing(name string) error { return &memberError{name, errors.New("missing")} }

// kindOf names the JSON type of a value.
func kindOf(raw json.RawMessage) string {
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// expect refuses a value of another JSON type.
func expect(raw json.RawMessage, kind string) error {
	if kindOf(raw) == kind {
		return nil
	}
	return expected(kind, raw)
}

// expected returns an error about the type of a value. It includes a number, which may be of
// the right type but out of range.
func expected(wanted string, raw json.RawMessage) error {
	const most = 40 // digits
	got := kindOf(raw)
	if got == "a number" && len(raw) <= most {
		got = string(raw)
	}
	return fmt.Errorf("expected %s, got %s", wanted, got)
}

// oneOf refuses a value that is not in the list; an empty list allows every value.
func oneOf(value string, known ...string) error {
	if len(known) == 0 || slices.Contains(known, value) {
		return nil
	}
	return fmt.Errorf("expected one of %s, got %s", strings.Join(known, ", "), quote(value))
}

// quote quotes and shortens the text of a peer for an error.
func quote(s string) string {
	const most = 256 // bytes
	if len(s) > most {
		return strconv.Quote(strings.ToValidUTF8(s[:most], "")) + "…"
	}
	return strconv.Quote(s)
}

func isNull(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == 'n' }

// textOf returns the text of a JSON string, without a copy when it holds no
// escapes.
func textOf(raw json.RawMessage) ([]byte, error) {
	if err := expect(raw, "a string"); err != nil {
		return nil, err
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

func decodeIdentifier(raw json.RawMessage) (string, error) {
	text, err := textOf(raw)
	if err == nil && len(text) > MaxIdentifierBytes {
		return "", fmt.Errorf("%d bytes long, the limit is %d bytes", len(text), MaxIdentifierBytes)
	}
	return string(text), err
}

func decodeUnsigned(raw json.RawMessage) (uint64, error) {
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return 0, expected("a whole number from 0 to 18446744073709551615", raw)
	}
	return n, nil
}

// decodeDimension decodes the rows or columns of a terminal.
func decodeDimension(raw json.RawMessage) (uint16, error) {
	n, err := strconv.ParseUint(string(raw), 10, 16)
	if err != nil || n == 0 {
		return 0, expected("a whole number from 1 to 65535", raw)
	}
	return uint16(n), nil
}

func decodeFloat(raw json.RawMessage) (float64, error) {
	n, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return 0, expected("a number of double precision", raw)
	}
	return n, nil
}

func decodeBool(raw json.RawMessage) (bool, error) {
	if err := expect(raw, "a boolean"); err != nil {
		return false, err
	}
	return raw[0] == 't', nil
}

func decodeItems(raw json.RawMessage) (items []json.RawMessage, err error) {
	if err := expect(raw, "an array"); err != nil {
		return nil, err
	}
	err = json.Unmarshal(raw, &items)
	return items, err
}

// index returns the part of a path that stands for an element of an array.
func index(i int) string { return "[" + strconv.Itoa(i) + "]" }

func decodeList[T any](raw json.RawMessage, decode func(json.RawMessage) (T, error)) ([]T, error) {
	items, err := decodeItems(raw)
	if err != nil {
		return nil, err
	}
	list := make([]T, len(items))
	for i, item := range items {
		if list[i], err = decode(item); err != nil {
			return nil, at(index(i), err)
		}
	}
	return list, nil
}

func decodeStringMap(raw json.RawMessage) (map[string]string, error) {
	if err := expect(raw, "an object"); err != nil {
		return nil, err
	}
	members, err := splitObject(raw, nil)
	if err != nil {
		return nil, err
	}
	m := make(map[string]string, len(members))
	for _, member := range members {
		if m[string(member.name)], err = decodeString(member.value); err != nil {
			return nil, at(quote(string(member.name)), err)
		}
	}
	return m, nil
}

func decodePaths(raw json.RawMessage) ([]Path, error) { return decodeList(raw, decodePath) }

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
