package protocol

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits of one message.
const (
	// MaxValues is the maximum number of JSON values in a message. Every scalar, array and
	// object counts as one; member names do not count.
	MaxValues = 262144
	// maxDepth is the maximum nesting of arrays and objects, including the message itself.
	maxDepth = 127
)

// SyntaxError reports why a text is not a message of this protocol.
type SyntaxError struct {
	text string
}

func (e *SyntaxError) Error() string { return e.text }

// member is one name and value of an object; both slices point into the text
// that was scanned, the name unquoted.
type member struct {
	name  []byte
	value json.RawMessage
}

// scanner validates one JSON text in a single pass, as strictly as encoding/json. It also
// rejects invalid UTF-8, unpaired surrogates, duplicate names in an object, more than
// MaxValues values, and nesting deeper than maxDepth.
//
// encoding/json accepts all of these, and scans a large payload several times to decode an
// envelope. scanner allocates only the names of the open objects; MaxValues and maxDepth
// bound its work.
type scanner struct {
	data    []byte
	valid   bool // data has been validated before
	pos     int
	values  int
	names   [][]byte // the names seen so far of every open object, innermost last
	escaped bool     // the last string holds escapes
	wide    bool     // there may be characters beyond ASCII in the strings so far
}

// scanObject validates data, which must be one object, and appends its members
// to members.
func scanObject(data []byte, members []member) ([]member, error) {
	s := scanner{data: data}
	members, err := s.whole(members)
	// This check comes last, because ASCII does not need it, but its error comes first,
	// because other errors may be consequences.
	if (s.wide || err != nil) && !utf8.Valid(data) {
		return nil, &SyntaxError{"invalid UTF-8"}
	}
	return members, err
}

// splitObject does the same for data that has been validated before, as part of
// a message: it need not look into strings again, which may be long.
func splitObject(data []byte, members []member) ([]member, error) {
	s := scanner{data: data, valid: true}
	return s.whole(members)
}

func (s *scanner) whole(members []member) ([]member, error) {
	data := s.data
	s.space()
	if s.pos == len(data) {
		return nil, s.fail("no value")
	}
	if data[s.pos] != '{' {
		if err := s.value(0); err != nil {
			return nil, err
		}
		return nil, &SyntaxError{"a message is one JSON object"}
	}
	s.values++
	err := s.object(1, func(m member) { members = append(members, m) })
	if err != nil {
		return nil, err
	}
	s.space()
	if s.pos != len(data) {
		return nil, s.fail("the message goes on after its object")
	}
	return members, nil
}

// fail reports a mistake at the current position.
func (s *scanner) fail(text string) error {
	if s.pos >= len(s.data) {
		return &SyntaxError{fmt.Sprintf("invalid JSON: it ends after %d bytes, in the middle of a value", len(s.data))}
	}
	return &SyntaxError{fmt.Sprintf("invalid JSON at byte %d: %s", s.pos, text)}
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

// value scans one value; depth is the number of arrays and objects around it.
func (s *scanner) value(depth int) error {
	s.values++
	if s.values > MaxValues {
		return &SyntaxError{fmt.Sprintf("more than %d JSON values, the limit of one message", MaxValues)}
	}
	if s.pos == len(s.data) {
		return s.fail("no value")
	}
	switch c := s.data[s.pos]; {
	case c == '{':
		return s.object(depth+1, nil)
	case c == '[':
		return s.array(depth + 1)
	case c == '"':
		return s.text()
	case c == '-' || '0' <= c && c <= '9':
		return s.number()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	}
	return s.fail("no value")
}

func (s *scanner) word(w string) error {
	for i := range len(w) {
		if s.pos == len(s.data) || s.data[s.pos] != w[i] {
			return s.fail("no value")
		}
		s.pos++
	}
	return nil
}

// object scans an object whose opening brace is at pos, and calls visit for
// each member.
func (s *scanner) object(depth int, visit func(member)) error {
	if depth > maxDepth {
		return s.fail(fmt.Sprintf("nested deeper than %d", maxDepth))
	}
	s.pos++
	first := len(s.names)
	var seen map[string]bool // replaces the linear search in large objects
	for more := false; ; more = true {
		s.space()
		if s.pos == len(s.data) {
			return s.fail("no value")
		}
		if s.data[s.pos] == '}' && !more {
			s.pos++
			break
		}
		if s.data[s.pos] != '"' {
			return s.fail("expected the name of a member")
		}
		name, err := s.name()
		if err != nil {
			return err
		}
		if seen, err = s.once(name, first, seen); err != nil {
			return err
		}
		s.space()
		if s.pos == len(s.data) || s.data[s.pos] != ':' {
			return s.fail("expected :")
		}
		s.pos++
		s.space()
		from := s.pos
		if err := s.value(depth); err != nil {
			return err
		}
		value := json.RawMessage(s.data[from:s.pos])
		s.space()
		if s.pos == len(s.data) {
			return s.fail("no value")
		}
		c := s.data[s.pos]
		if c != ',' && c != '}' {
			return s.fail("expected , or }")
		}
		// Only what follows a number shows that it is whole.
		if visit != nil {
			visit(member{name, value})
		}
		s.pos++
		if c == '}' {
			break
		}
	}
	s.names = s.names[:first]
	return nil
}

// linearNames is how many names of one object are compared one by one before a
// map takes over.
const linearNames = 16

// once refuses a name that the object whose names start at first already has.
func (s *scanner) once(name []byte, first int, seen map[string]bool) (map[string]bool, error) {
	duplicate := seen[string(name)]
	if seen == nil {
		for _, n := range s.names[first:] {
			if bytes.Equal(n, name) {
				duplicate = true
			}
		}
	}
	if duplicate {
		s.pos-- // the name's last byte
		return nil, s.fail(fmt.Sprintf("the member %s is there twice", quote(string(name))))
	}
	s.names = append(s.names, name)
	if count := len(s.names) - first; seen == nil && count > linearNames {
		seen = make(map[string]bool, 4*count)
		for _, n := range s.names[first:] {
			seen[string(n)] = true
		}
	} else if seen != nil {
		seen[string(name)] = true
	}
	return seen, nil
}

// name scans a string and returns what it spells.
func (s *scanner) name() ([]byte, error) {
	from := s.pos
	if err := s.text(); err != nil {
		return nil, err
	}
	if !s.escaped {
		return s.data[from+1 : s.pos-1], nil
	}
	var name string
	if err := json.Unmarshal(s.data[from:s.pos], &name); err != nil {
		return nil, s.fail("invalid string")
	}
	return []byte(name), nil
}

// text scans a string.
func (s *scanner) text() error {
	s.pos++
	s.escaped = false
	if s.valid {
		return s.skipText()
	}
	for s.pos < len(s.data) {
		n, wide := plainLen(s.data[s.pos:])
		s.pos += n
		s.wide = s.wide || wide
		if s.pos == len(s.data) {
			break
		}
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return nil
		case c < 0x20:
			return s.fail("a control character in a string")
		}
		s.escaped = true
		s.pos++
		if s.pos == len(s.data) {
			break
		}
		switch s.data[s.pos] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			s.pos++
		case 'u':
			s.pos++
			if err := s.codePoint(); err != nil {
				return err
			}
		default:
			return s.fail("invalid escape")
		}
	}
	return s.fail("no value")
}

// skipText scans a string that has been validated: whatever is not plain in it is
// its end or an escape.
func (s *scanner) skipText() error {
	for s.pos < len(s.data) {
		n, _ := plainLen(s.data[s.pos:])
		s.pos += n
		if s.pos == len(s.data) {
			break
		}
		if s.data[s.pos] == '"' {
			s.pos++
			return nil
		}
		s.escaped = true
		s.pos = min(s.pos+2, len(s.data))
	}
	return s.fail("no value")
}

// plainLen returns how many bytes at the start of b are plain text of a string:
// no quote, backslash or control character; and whether there may be a byte
// among them that is not ASCII. Strings may have many megabytes, so it looks at
// many bytes at a time.
func plainLen(b []byte) (n int, wide bool) {
	var all uint64 // words, one over the other
	for ; len(b)-n >= 32; n += 32 {
		w, x := binary.LittleEndian.Uint64(b[n:]), binary.LittleEndian.Uint64(b[n+8:])
		y, z := binary.LittleEndian.Uint64(b[n+16:]), binary.LittleEndian.Uint64(b[n+24:])
		if special(w)|special(x)|special(y)|special(z) != 0 {
			break
		}
		all |= w | x | y | z
	}
	for ; len(b)-n >= 8; n += 8 {
		word := binary.LittleEndian.Uint64(b[n:])
		all |= word
		if marks := special(word); marks != 0 {
			return n + bits.TrailingZeros64(marks)/8, all&highBits != 0
		}
	}
	for ; n < len(b); n++ {
		c := b[n]
		if c < 0x20 || c == '"' || c == '\\' {
			break
		}
		all |= uint64(c)
	}
	return n, all&highBits != 0
}

const (
	eachByte = 0x0101010101010101
	highBits = eachByte << 7
)

// special sets the highest bit of each byte of a word that is not plain text. Subtracting sets
// it in a byte below the bound. A borrow may also set it in later bytes, never in earlier ones,
// so the first mark is right.
func special(word uint64) uint64 {
	quote, backslash := word^eachByte*'"', word^eachByte*'\\'
	return ((word-eachByte*0x20)&^word | (quote-eachByte)&^quote | (backslash-eachByte)&^backslash) & highBits
}

// codePoint scans the rest of a \u escape: four digits, or with the next escape a surrogate
// pair. An unpaired surrogate has no UTF-8 encoding, so ids or paths with one could not be
// distinguished.
func (s *scanner) codePoint() error {
	unit, err := s.hex()
	if err != nil || !utf16.IsSurrogate(unit) {
		return err
	}
	if bytes.HasPrefix(s.data[s.pos:], []byte(`\u`)) {
		s.pos += 2
		low, err := s.hex()
		if err != nil {
			return err
		}
		if utf16.DecodeRune(unit, low) != utf8.RuneError {
			return nil
		}
	}
	return s.fail("half a surrogate pair")
}

// hex scans four hexadecimal digits.
func (s *scanner) hex() (rune, error) {
	if len(s.data)-s.pos < 4 {
		s.pos = len(s.data)
		return 0, s.fail("no value")
	}
	n, err := strconv.ParseUint(string(s.data[s.pos:s.pos+4]), 16, 16)
	if err != nil {
		return 0, s.fail("invalid escape")
	}
	s.pos += 4
	return rune(n), nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// array scans an array whose opening bracket is at pos.
func (s *scanner) array(depth int) error {
	if depth > maxDepth {
		return s.fail(fmt.Sprintf("nested deeper than %d", maxDepth))
	}
	s.pos++
	for more := false; ; more = true {
		s.space()
		if s.pos == len(s.data) {
			return s.fail("no value")
		}
		if s.data[s.pos] == ']' && !more {
			s.pos++
			return nil
		}
		if err := s.value(depth); err != nil {
			return err
		}
		s.space()
		if s.pos == len(s.data) {
			return s.fail("no value")
		}
		switch s.data[s.pos] {
		case ',':
			s.pos++
		case ']':
			s.pos++
			return nil
		default:
			return s.fail("expected , or ]")
		}
	}
}

// number scans a number of the JSON grammar.
func (s *scanner) number() error {
	if s.data[s.pos] == '-' {
		s.pos++
	}
	switch {
	case s.pos < len(s.data) && s.data[s.pos] == '0':
		s.pos++
	case !s.digits():
		return s.fail("invalid number")
	}
	if s.pos < len(s.data) && s.data[s.pos] == '.' {
		s.pos++
		if !s.digits() {
			return s.fail("invalid number")
		}
	}
	if s.pos < len(s.data) && (s.data[s.pos] == 'e' || s.data[s.pos] == 'E') {
		s.pos++
		if s.pos < len(s.data) && (s.data[s.pos] == '+' || s.data[s.pos] == '-') {
			s.pos++
		}
		if !s.digits() {
			return s.fail("invalid number")
		}
	}
	return nil
}

// digits scans at least one digit.
func (s *scanner) digits() bool {
	from := s.pos
	for s.pos < len(s.data) && '0' <= s.data[s.pos] && s.data[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > from
}
