package term

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const esc = 0x1b

// maxSequence bounds the bytes of a sequence that are held back. A longer one, such as an image,
// passes in pieces.
const maxSequence = 4096

// sequence is the incomplete escape sequence at the end of the output.
type sequence struct {
	state sequenceState
	text  []byte
}

type sequenceState byte

const (
	inText    sequenceState = iota
	inEscape                // after ESC
	inControl               // after ESC [
	inString                // after ESC ] and the like, until ESC \ or BEL
)

// add adds a byte, and reports whether it completed the sequence.
func (s *sequence) add(c byte) (done bool) {
	s.text = append(s.text, c)
	const cancel, substitute, bell = 0x18, 0x1a, 0x07
	switch {
	case c == cancel, c == substitute:
		s.state = inText
	case c == esc:
		s.state = inEscape
	case s.state == inEscape:
		switch {
		case c == '[':
			s.state = inControl
		case strings.IndexByte("]P_^X", c) >= 0:
			s.state = inString
		case c >= 0x30 && c < 0x7f:
			s.state = inText
		}
	case s.state == inControl && c >= 0x40 && c < 0x7f:
		s.state = inText
	case s.state == inString && c == bell:
		s.state = inText
	}
	return s.state == inText
}

// modes are the changes that a program has made to the terminal.
type modes struct {
	private  map[int]bool // by number: set or reset
	region   bool         // a part of the screen scrolls
	keypad   bool
	drawing  bool // letters are lines
	reported int  // reports of keys that were switched on more often than off
	other    bool // keys are reported with their modifiers
}

// maxMode is greater than the numbers of all private modes. It bounds the modes that a program
// can change.
const maxMode = 1 << 17

// initially are the private modes that are initially on.
var initially = []int{7, 25}

// note records the effect of a sequence.
func (m *modes) note(seq []byte) {
	seq = seq[bytes.LastIndexByte(seq, esc)+1:]
	if len(seq) == 0 {
		return
	}
	final := seq[len(seq)-1]
	switch {
	case seq[0] != '[':
		switch string(seq) {
		case "=":
			m.keypad = true
		case ">":
			m.keypad = false
		case "(0", "(B":
			m.drawing = final == '0'
		case "c":
			*m = modes{}
		}
	case len(seq) > 2 && seq[1] == '?' && (final == 'h' || final == 'l'):
		if m.private == nil {
			m.private = make(map[int]bool)
		}
		for _, field := range strings.Split(string(seq[2:len(seq)-1]), ";") {
			if n, err := strconv.Atoi(field); err == nil && n >= 0 && n < maxMode {
				m.private[n] = final == 'h'
			}
		}
	case final == 'r' && seq[1] != '?':
		m.region = len(seq) > 2
	case final == 'u' && seq[1] == '>':
		m.reported++
	case final == 'u' && seq[1] == '<':
		m.reported = max(0, m.reported-1)
	case final == 'm' && bytes.HasPrefix(seq, []byte("[>4")):
		m.other = len(seq) > 4 && !bytes.HasSuffix(seq, []byte(";0m"))
	}
}

// alternate reports whether the program uses the alternate screen.
func (m *modes) alternate() bool { return m.private[1049] || m.private[1047] || m.private[47] }

// off returns the sequences that undo the changes, and on those that make them again.
func (m *modes) off() []byte { return m.sequences(false) }

func (m *modes) on() []byte { return m.sequences(true) }

func (m *modes) sequences(on bool) []byte {
	var out []byte
	add := func(changed bool, off, again string) {
		switch {
		case changed && on:
			out = append(out, again...)
		case changed:
			out = append(out, off...)
		}
	}
	add(m.reported > 0, "\x1b[<"+strconv.Itoa(m.reported)+"u", "\x1b[>1u")
	add(m.other, "\x1b[>4;0m", "\x1b[>4;2m")
	add(m.region, "\x1b7\x1b[r\x1b8", "") // a program that draws its screen again sets it
	add(m.keypad, "\x1b>", "\x1b=")
	add(m.drawing, "\x1b(B", "\x1b(0")
	for _, n := range slices.Sorted(maps.Keys(m.private)) {
		set := m.private[n]
		if set == slices.Contains(initially, n) {
			continue // as at first
		}
		final := "l"
		if set == on {
			final = "h"
		}
		out = append(out, "\x1b[?"+strconv.Itoa(n)+final...)
	}
	if len(out) > 0 && !on {
		out = append(out, "\x1b[0m"...)
	}
	return out
}

// asks reports whether a terminal answers a sequence with input.
func asks(seq []byte) bool {
	if len(seq) < 3 {
		return string(seq) == "\x1bZ"
	}
	final := seq[len(seq)-1]
	switch seq[1] {
	case '[':
		switch {
		case final == 'c', final == 'n', final == 't', final == 'x':
			return true
		case final == 'q':
			return seq[2] == '>'
		case final == 'u':
			return seq[2] == '?'
		case final == 'p':
			return bytes.IndexByte(seq, '$') > 0
		}
		return false
	case ']':
		return bytes.IndexByte(seq, '?') > 0
	}
	return seq[1] == 'P'
}
