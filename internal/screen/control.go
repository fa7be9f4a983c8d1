package screen

import (
	"strings"
	"unicode"
)

// escape executes an escape sequence.
func (s *Screen) escape(intermediates string, final byte) {
	switch intermediates {
	case "":
	case "(", ")":
		s.charsets[intermediates[0]-'('] = final
		return
	case "#":
		if final == '8' {
			s.alignmentTest()
		}
		return
	default:
		return
	}
	switch final {
	case '7':
		s.saved = s.cursor
	case '8':
		s.restore()
	case '=':
		s.modes |= keypad
	case '>':
		s.modes &^= keypad
	case 'D':
		s.lineFeed()
	case 'E':
		s.col = 0
		s.lineFeed()
	case 'H':
		s.tabs[s.col] = true
	case 'M':
		s.reverseLineFeed()
	case 'c':
		s.title = ""
		s.reset()
	}
}

// restore restores the state that DECSC saved.
func (s *Screen) restore() {
	s.cursor = s.saved
	row := s.row
	if s.origin {
		row = min(max(row, s.top), s.bottom)
	}
	s.moveTo(row, s.col)
}

// alignmentTest fills the screen.
func (s *Screen) alignmentTest() {
	fill := blank
	fill.char = 'E'
	for _, l := range s.lines {
		l.clear(fill)
	}
	s.top, s.bottom = 0, s.rows-1
	s.moveTo(0, 0)
}

// control executes a control sequence.
func (s *Screen) control(final byte) {
	p := &s.parser
	private, between := p.private, string(p.intermediates)
	p.toGround()
	switch {
	case private == 0 && between == "":
		s.ordinaryControl(final)
	case private == '?' && between == "":
		s.privateControl(final)
	case private == 0 && between == "!" && final == 'p':
		s.softReset()
	case private == 0 && between == " " && final == 'q':
		if n := p.param(0, 0); n <= 6 {
			s.shape = n
		}
	}
}

func (s *Screen) ordinaryControl(final byte) {
	p := &s.parser
	n := p.param(0, 1)
	switch final {
	case '@':
		s.shiftCells(n)
	case 'A':
		s.moveRows(-n)
	case 'B', 'e':
		s.moveRows(n)
	case 'C', 'a':
		s.moveTo(s.row, s.col+n)
	case 'D':
		s.moveTo(s.row, s.col-n)
	case 'E':
		s.moveRows(n)
		s.col = 0
	case 'F':
		s.moveRows(-n)
		s.col = 0
	case 'G', '`':
		s.moveTo(s.row, n-1)
	case 'H', 'f':
		s.address(n-1, p.param(1, 1)-1)
	case 'I':
		s.tab(n)
	case 'J':
		s.eraseScreen(p.param(0, 0))
	case 'K':
		s.eraseLine(p.param(0, 0))
	case 'L':
		s.shiftLines(-n)
	case 'M':
		s.shiftLines(n)
	case 'P':
		s.shiftCells(-n)
	case 'S':
		s.scroll(s.top, n)
	case 'T':
		if len(p.params) < 2 { // with more it is about the mouse
			s.scroll(s.top, -n)
		}
	case 'X':
		if !s.wrapping {
			s.lines[s.row].erase(s.col, min(s.col+n, s.cols), s.cols, s.erased())
		}
	case 'Z':
		s.tab(-n)
	case 'b':
		s.repeat(n)
	case 'd':
		s.address(n-1, s.col)
	case 'g':
		s.clearTabs(p.param(0, 0))
	case 'h', 'l':
		s.setModes(ansiModes, final == 'h')
	case 'm':
		s.style.apply(p.params)
	case 'r':
		s.setRegion(n, p.param(1, s.rows))
	case 's':
		s.saved = s.cursor
	case 'u':
		s.restore()
	}
}

// shiftCells inserts n blanks at the cursor, or deletes cells if n is negative.
func (s *Screen) shiftCells(n int) {
	if !s.wrapping {
		s.lines[s.row].shift(s.col, n, s.cols, s.erased())
	}
}

// shiftLines deletes n lines at the cursor, or inserts blank ones if n is negative.
func (s *Screen) shiftLines(n int) {
	if s.row >= s.top && s.row <= s.bottom {
		s.scroll(s.row, n)
		s.col, s.wrapping = 0, false
	}
}

// repeat prints the last character again, up to the end of the line.
func (s *Screen) repeat(n int) {
	if s.last == 0 || s.wrapping {
		return
	}
	w := width(s.last)
	n = min(n, (s.cols-s.col)/w)
	charsets, modes := s.charsets, s.modes
	s.charsets = [2]byte{'B', 'B'} // it has been translated already
	if s.modes.has(insert) && n > 0 {
		// Shift once for all characters, instead of once for each.
		s.lines[s.row].shift(s.col, n*w, s.cols, s.erased())
		s.modes &^= insert
	}
	for ; n > 0; n-- {
		s.print(s.last, w)
	}
	s.charsets, s.modes = charsets, modes
}

// eraseLine erases the rest of the line, its beginning, or all of it. The rest is empty if the
// cursor is past the last column.
func (s *Screen) eraseLine(which int) {
	from, to := s.col, s.cols
	if s.wrapping {
		from = s.cols
	}
	switch which {
	case 0:
	case 1:
		from, to = 0, s.col+1
	case 2:
		from = 0
	default:
		return
	}
	s.lines[s.row].erase(from, to, s.cols, s.erased())
}

// eraseScreen is eraseLine for the screen.
func (s *Screen) eraseScreen(which int) {
	if which > 2 {
		return
	}
	s.eraseLine(which)
	for row, l := range s.lines {
		if which == 2 || which == 0 && row > s.row || which == 1 && row < s.row {
			l.clear(s.erased())
		}
	}
}

func (s *Screen) clearTabs(which int) {
	switch which {
	case 0:
		s.tabs[s.col] = false
	case 3:
		clear(s.tabs)
	}
}

// setRegion sets the rows that scroll, counted from 1.
func (s *Screen) setRegion(top, bottom int) {
	bottom = min(bottom, s.rows)
	if top >= bottom {
		return
	}
	s.top, s.bottom = top-1, bottom-1
	s.address(0, 0)
}

// endString ends a string, which may be a title.
func (s *Screen) endString() {
	p := &s.parser
	text := p.text
	switch {
	case p.state == ignored, len(text) > maxText:
		return
	case p.state == command:
		if len(text) < 2 || text[0] != '0' && text[0] != '2' || text[1] != ';' {
			return
		}
		text = text[2:]
	}
	s.title = printable(text)
}

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
type numberedMode struct {
	number int
	mode   modes
}

var ansiModes = []numberedMode{{4, insert}, {20, newLine}}

// privateModes are those after a question mark, except those that privateMode handles.
var privateModes = []numberedMode{
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
func (s *Screen) setModes(of []numberedMode, on bool) {
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

// privateMode sets or resets a mode with side effects.
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

// useAlternate switches to a blank alternate screen, or back to the ordinary one.
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

// printable returns a text without invisible characters, such as direction marks.
func printable(text []byte) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsGraphic(r) {
			return -1
		}
		return r
	}, string(text))
}
