package screen

import (
	"unicode"
)

// print puts a character at the cursor.
func (s *Screen) print(r rune, width int) {
	if s.charsets[s.charset()] == '0' && r >= '_' && r <= '~' {
		r = drawings[r-'_']
	}
	switch {
	case width == 0:
		s.combine(r)
		return
	case width > s.cols:
		return
	case s.wrapping && s.modes.has(autowrap), s.col+width > s.cols && s.modes.has(autowrap):
		s.col = 0
		s.lineFeed()
	case s.col+width > s.cols:
		return
	}
	s.wrapping, s.last = false, r
	l := s.lines[s.row]
	if s.modes.has(insert) {
		l.shift(s.col, width, s.cols, s.erased())
	}
	end := s.col + width
	l.extend(end)
	l.split(s.col)
	l.split(end)
	l.cells[s.col] = cell{char: r, width: uint8(width), style: s.style}
	if width == 2 {
		l.cells[s.col+1] = cell{char: ' ', style: s.style}
	}
	if s.col = end; end == s.cols {
		s.col, s.wrapping = end-1, s.modes.has(autowrap)
	}
}

func (s *Screen) charset() int {
	if s.shifted {
		return 1
	}
	return 0
}

// combine adds a character to the one before the cursor.
func (s *Screen) combine(r rune) {
	col := s.col
	if !s.wrapping {
		col--
	}
	l := s.lines[s.row]
	if col < 0 || unicode.Is(unicode.Bidi_Control, r) {
		return
	}
	l.extend(col + 1)
	c := &l.cells[col]
	if c.width == 0 {
		c = &l.cells[col-1]
	}
	if mark := string(r); len(c.marks)+len(mark) <= maxMarks {
		c.marks += mark
	}
}

// erased returns the cell that erasing leaves: a blank with the colour of the background.
func (s *Screen) erased() cell {
	c := blank
	c.style.bg = s.style.bg
	return c
}

// execute executes a control character.
func (s *Screen) execute(c byte) {
	switch c {
	case '\b':
		s.moveTo(s.row, s.col-1)
	case '\t':
		s.tab(1)
	case '\n', '\v', '\f':
		s.lineFeed()
		if s.modes.has(newLine) {
			s.col = 0
		}
	case '\r':
		s.col, s.wrapping = 0, false
	case 0x0e:
		s.shifted = true
	case 0x0f:
		s.shifted = false
	}
}

// lineFeed moves the cursor down, or the lines up if it is in the last row that scrolls.
func (s *Screen) lineFeed() {
	s.wrapping = false
	switch {
	case s.row == s.bottom:
		s.scroll(s.top, 1)
	case s.row < s.rows-1:
		s.row++
	}
}

// reverseLineFeed is its opposite.
func (s *Screen) reverseLineFeed() {
	s.wrapping = false
	switch {
	case s.row == s.top:
		s.scroll(s.top, -1)
	case s.row > 0:
		s.row--
	}
}

// scroll moves the lines from one row to the bottom of the region up by n, or down if n is
// negative.
func (s *Screen) scroll(top, n int) {
	lines := s.lines[top : s.bottom+1]
	up := n > 0
	if !up {
		n = -n
	}
	n = min(n, len(lines))
	if up {
		s.moved = append(s.moved[:0], lines[:n]...)
		copy(lines, lines[n:])
		copy(lines[len(lines)-n:], s.moved)
	} else {
		s.moved = append(s.moved[:0], lines[len(lines)-n:]...)
		copy(lines[n:], lines)
		copy(lines, s.moved)
	}
	for _, l := range s.moved {
		l.clear(s.erased())
	}
}

// moveTo moves the cursor within the screen.
func (s *Screen) moveTo(row, col int) {
	s.row, s.col = min(max(row, 0), s.rows-1), min(max(col, 0), s.cols-1)
	s.wrapping = false
}

// address moves the cursor to a row and a column that a program names, counted from 0.
func (s *Screen) address(row, col int) {
	if s.origin {
		row = min(row+s.top, s.bottom)
	}
	s.moveTo(row, col)
}

// moveRows moves the cursor up or down, but not out of the region that scrolls.
func (s *Screen) moveRows(n int) {
	row := s.row + n
	if n < 0 && s.row >= s.top {
		row = max(row, s.top)
	}
	if n > 0 && s.row <= s.bottom {
		row = min(row, s.bottom)
	}
	s.moveTo(row, s.col)
}

// tab moves the cursor by n tab stops, to the left if n is negative.
func (s *Screen) tab(n int) {
	step := 1
	if n < 0 {
		step = -1
	}
	col := s.col
	for ; n != 0 && col+step >= 0 && col+step < s.cols; n -= step {
		for col += step; col > 0 && col < s.cols-1 && !s.tabs[col]; {
			col += step
		}
	}
	if col != s.col {
		s.moveTo(s.row, col)
	}
}
