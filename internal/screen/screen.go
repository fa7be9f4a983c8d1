// Package screen emulates a terminal: it interprets the output of a program and keeps the
// screen that a person would see. It follows xterm where programs notice a difference, but
// never answers requests of the program.
//
// Start at [New] and [Screen.Write]. [Screen.Rows] returns the text, and [Screen.Drawing] the
// sequences that bring another terminal of the same size to the same state.
//
// The states of the parser follow Paul Williams' diagram (vt100.net/emu/dec_ansi_parser).
// The input is not trusted. So each byte costs a bounded time, about that of one row at most,
// and the memory depends only on the size of the screen.
package screen

import "unicode/utf8"

// The limits of a screen.
const (
	MaxRows  = 500
	MaxCols  = 1000
	MaxCells = 1 << 16
)

// Fits reports whether a screen may have a size. Zero means the default.
func Fits(rows, cols int) bool {
	rows, cols = orDefault(rows, cols)
	return rows <= MaxRows && cols <= MaxCols && rows*cols <= MaxCells
}

// orDefault replaces sizes that a terminal cannot have by those of an ordinary one.
func orDefault(rows, cols int) (int, int) {
	if rows < 1 {
		rows = 24
	}
	if cols < 1 {
		cols = 80
	}
	return rows, cols
}

// Screen is the state of a terminal. Its methods must not be called concurrently.
type Screen struct {
	rows, cols int
	lines      []*line // of the screen that is shown
	ordinary   []*line // of the other one while the alternate screen is shown; else nil
	spare      []*line // for the alternate screen, if there was one before; blank or not
	moved      []*line // for scroll

	cursor
	saved      cursor // by DECSC on the screen that is shown
	savedOther cursor // on the ordinary screen while the alternate one is shown
	wrapping   bool   // the next character goes to the next line

	top, bottom int // first and last row that scroll
	tabs        []bool
	modes       modes
	shape       int  // of the cursor, as DECSCUSR numbers them
	last        rune // the last character, to be repeated; 0 for none
	title       string

	parser parser
}

// cursor is what DECSC saves.
type cursor struct {
	row, col int
	style    style
	charsets [2]byte // '0' is line drawing
	shifted  bool    // the second charset is in use
	origin   bool    // rows are counted from the top of the region that scrolls
}

// New returns a blank screen. Rows and columns below 1 mean the default. The size must fit
// (see [Fits]).
func New(rows, cols int) *Screen {
	rows, cols = orDefault(rows, cols)
	s := &Screen{rows: rows, cols: cols, lines: blankLines(rows), tabs: make([]bool, cols)}
	s.reset()
	return s
}

// reset resets everything but the title.
func (s *Screen) reset() {
	s.useAlternate(false)
	for _, l := range s.lines {
		l.clear(blank)
	}
	s.cursor = cursor{charsets: [2]byte{'B', 'B'}}
	s.saved, s.savedOther = s.cursor, s.cursor
	s.wrapping, s.last, s.shape = false, 0, 0
	s.modes = initialModes
	s.top, s.bottom = 0, s.rows-1
	setTabs(s.tabs)
}

func blankLines(n int) []*line {
	lines, all := make([]*line, n), make([]line, n)
	for i := range lines {
		all[i].fill = blank
		lines[i] = &all[i]
	}
	return lines
}

// setTabs sets the default tab stops.
func setTabs(tabs []bool) {
	for i := range tabs {
		tabs[i] = i > 0 && i%8 == 0
	}
}

// Resize changes the size of the screen to one that must fit. As in xterm, lines are truncated
// and not rewrapped. Excess rows are removed at the top if the cursor would otherwise be
// outside, and else at the bottom.
func (s *Screen) Resize(rows, cols int) {
	rows, cols = orDefault(rows, cols)
	if rows == s.rows && cols == s.cols {
		return
	}
	gone := max(0, s.row-rows+1)
	s.row -= gone
	s.saved.row -= gone
	kept := min(cols, s.cols)
	s.lines = resized(s.lines, gone, rows, kept)
	if s.ordinary != nil {
		gone = max(0, s.savedOther.row-rows+1)
		s.savedOther.row -= gone
		s.ordinary = resized(s.ordinary, gone, rows, kept)
	}
	tabs := make([]bool, cols)
	setTabs(tabs)
	copy(tabs, s.tabs)
	s.rows, s.cols, s.tabs, s.spare = rows, cols, tabs, nil
	s.top, s.bottom, s.wrapping = 0, rows-1, false
	for _, c := range []*cursor{&s.cursor, &s.saved, &s.savedOther} {
		c.row, c.col = min(max(c.row, 0), rows-1), min(c.col, cols-1)
	}
}

// resized returns rows lines without the first gone ones, truncated to kept columns.
func resized(lines []*line, gone, rows, kept int) []*line {
	lines = lines[gone:]
	lines = append([]*line{}, lines[:min(rows, len(lines))]...)
	for _, l := range lines {
		l.truncate(kept)
	}
	return append(lines, blankLines(rows-len(lines))...)
}

// Gap records that output is missing. Later output does not continue an earlier sequence or
// character.
func (s *Screen) Gap() {
	s.parser.toGround()
	s.parser.skipsRest = true
}

// Size returns the number of rows and columns.
func (s *Screen) Size() (rows, cols int) { return s.rows, s.cols }

// Cursor returns the position of the cursor, counted from 0, and whether it is visible.
func (s *Screen) Cursor() (row, col int, visible bool) {
	return s.row, s.col, s.modes.has(showCursor)
}

// Alternate reports whether the program uses the alternate screen, as full-screen programs do.
func (s *Screen) Alternate() bool { return s.ordinary != nil }

// Title returns the title that the program has set. It has no control characters.
func (s *Screen) Title() string { return s.title }

// Memory returns the approximate memory of the screen in bytes.
func (s *Screen) Memory() int {
	n := 4 << 10
	for _, lines := range [][]*line{s.lines, s.ordinary, s.spare} {
		for _, l := range lines {
			n += l.memory()
		}
	}
	return n
}

// Write interprets output, which may be split anywhere. It does not retain b.
func (s *Screen) Write(b []byte) {
	for len(b) > 0 {
		if s.parser.state == ground && len(s.parser.pending) == 0 {
			n := s.plain(b)
			if b = b[n:]; n > 0 {
				s.parser.skipsRest = false
				continue
			}
		}
		b = b[s.next(b):]
	}
}

// plain prints the printable ASCII at the start of b, and returns how much that is.
func (s *Screen) plain(b []byte) (n int) {
	for n < len(b) && b[n] >= ' ' && b[n] < 0x7f {
		n++
	}
	for _, c := range b[:n] {
		s.print(rune(c), 1)
	}
	return n
}

// next interprets one byte, or one character of several bytes, and returns its length.
func (s *Screen) next(b []byte) int {
	p := &s.parser
	if p.state != ground || b[0] < utf8.RuneSelf && len(p.pending) == 0 {
		s.parse(b[0])
		return 1
	}
	if len(p.pending) == 0 && utf8.FullRune(b) {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			for n < len(b) && !utf8.FullRune(b[:n+1]) { // the beginning of a character is one error
				n++
			}
		}
		s.character(r, b[:n])
		return n
	}
	return s.gather(b[0])
}

// gather adds a byte to an incomplete character. It returns 0 for a byte that does not belong
// to it.
func (s *Screen) gather(c byte) int {
	p := &s.parser
	p.pending = append(p.pending, c)
	if !utf8.FullRune(p.pending) {
		return 1
	}
	known := p.pending
	r, n := utf8.DecodeRune(known)
	p.pending = p.pending[:0]
	if n < len(known) {
		s.character(utf8.RuneError, nil)
		return 0
	}
	s.character(r, known)
	return 1
}

// character prints a character that is not ASCII.
func (s *Screen) character(r rune, b []byte) {
	if r == utf8.RuneError && s.parser.skipsRest && len(b) == 1 && b[0]&0xc0 == 0x80 {
		return // the rest of a character before a gap
	}
	s.parser.skipsRest = false
	switch {
	case r >= 0x80 && r < 0xa0: // C1 controls, which are not used with UTF-8
	default:
		s.print(r, width(r))
	}
}
