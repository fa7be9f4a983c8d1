package screen

import (
	"strings"
	"unicode"
)

// modes are the modes of a terminal that a program sets and resets.
type modes uint32

const (
	insert modes = 1 << iota
	newLine
	keypad
	cursorKeys
	reversed
	autowrap
	blinking
	showCursor
	mouseX10
	mouseClicks
	mouseHighlight
	mouseDrags
	mouseMoves
	focus
	mouseUTF8
	mouseSGR
	mouseURXVT
	alternateScroll
	paste
	synchronized
)

const initialModes = autowrap | showCursor

func (m modes) has(other modes) bool { return m&other != 0 }

// numbered is a mode and its number in control sequences.
type numbered struct {
	number int
	mode   modes
}

var ansiModes = []numbered{{4, insert}, {20, newLine}}

// privateModes are those after a question mark, besides the ones that privateMode knows.
var privateModes = []numbered{
	{1, cursorKeys},
	{5, reversed},
	{7, autowrap},
	{9, mouseX10},
	{12, blinking},
	{25, showCursor},
	{66, keypad},
	{1000, mouseClicks},
	{1001, mouseHighlight},
	{1002, mouseDrags},
	{1003, mouseMoves},
	{1004, focus},
	{1005, mouseUTF8},
	{1006, mouseSGR},
	{1015, mouseURXVT},
	{1007, alternateScroll},
	{2004, paste},
	{2026, synchronized},
}

// setModes sets or resets those of the modes that the parameters name.
func (s *Screen) setModes(of []numbered, on bool) {
	for _, p := range s.parser.params {
		for _, m := range of {
			switch {
			case m.number != p.value:
			case on:
				s.modes |= m.mode
			default:
				s.modes &^= m.mode
			}
		}
	}
	if !s.modes.has(autowrap) {
		s.wrapping = false
	}
}

func (s *Screen) privateControl(final byte) {
	switch final {
	case 'h', 'l':
		s.setModes(privateModes, final == 'h')
		for _, p := range s.parser.params {
			s.privateMode(p.value, final == 'h')
		}
	case 'J':
		s.eraseScreen(s.parser.param(0, 0)) // selectively, but nothing is protected
	case 'K':
		s.eraseLine(s.parser.param(0, 0))
	}
}

// privateMode sets or resets a mode that does more than to be set.
func (s *Screen) privateMode(number int, on bool) {
	switch number {
	case 6:
		s.origin = on
		s.address(0, 0)
	case 47, 1047:
		s.useAlternate(on)
	case 1048, 1049:
		if on && (number == 1048 || s.ordinary == nil) {
			s.saved = s.cursor
		}
		if number == 1049 {
			s.useAlternate(on)
		}
		if !on {
			s.restore()
		}
	}
}

// useAlternate shows the alternate screen, which is blank then, or the ordinary one again.
func (s *Screen) useAlternate(on bool) {
	if on == s.Alternate() {
		return
	}
	s.wrapping = false
	if on {
		if s.spare == nil {
			s.spare = blankLines(s.rows)
		}
		s.lines, s.ordinary, s.spare = s.spare, s.lines, nil
		s.saved, s.savedOther = cursor{charsets: [2]byte{'B', 'B'}}, s.saved
		for _, l := range s.lines {
			l.clear(s.erased())
		}
		return
	}
	s.lines, s.ordinary, s.spare = s.ordinary, nil, s.lines
	s.saved, s.savedOther = s.savedOther, cursor{charsets: [2]byte{'B', 'B'}}
}

// softReset is DECSTR.
func (s *Screen) softReset() {
	s.style, s.charsets, s.shifted, s.origin = style{}, [2]byte{'B', 'B'}, false, false
	s.saved = cursor{charsets: s.charsets}
	s.modes = s.modes&^(insert|keypad|cursorKeys) | autowrap | showCursor
	s.top, s.bottom = 0, s.rows-1
}

// printable returns a text without what is not shown, such as marks of direction.
func printable(text []byte) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsGraphic(r) {
			return -1
		}
		return r
	}, string(text))
}
