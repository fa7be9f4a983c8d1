package screen

import "fmt"

// Drawing returns the sequences that bring a freshly reset terminal of the same size to the
// state of the screen: text, styles, cursor, modes and title, both screens, and an incomplete
// sequence. The terminal then interprets later output of the program in the same way, except
// that a sequence cannot repeat the last character (REP).
func (s *Screen) Drawing() []byte {
	d := &drawing{cols: s.cols}
	d.add("\x1b[!p\x1b[?7h\x1b[0m\x1b[2J")
	d.tabs(s.tabs)
	if s.ordinary != nil {
		d.lines(s.ordinary)
		d.placeCursor(s.savedOther, s.savedOther.row)
		d.add("\x1b[?1049h")
		d.plain()
		d.add("\x1b[2J")
	}
	d.lines(s.lines)
	d.placeCursor(s.saved, s.saved.row)
	d.add("\x1b7")
	d.plain()
	if s.top > 0 || s.bottom < s.rows-1 {
		d.add("\x1b[%d;%dr", s.top+1, s.bottom+1)
	}
	row := s.row
	if s.origin {
		row -= s.top
	}
	d.placeCursor(s.cursor, row)
	if s.wrapping {
		d.wrap(s, row)
	}
	d.modes(s.modes)
	if s.shape > 0 {
		d.add("\x1b[%d q", s.shape)
	}
	if s.title != "" {
		d.add("\x1b]2;%s\x1b\\", s.title)
	}
	return append(d.out, s.parser.pending...)
}

type drawing struct {
	out  []byte
	cols int
}

func (d *drawing) add(format string, args ...any) { d.out = fmt.Appendf(d.out, format, args...) }

// lines draws lines on a blank screen.
func (d *drawing) lines(lines []*line) {
	for i, l := range lines {
		end := l.end(d.cols)
		if end == 0 {
			continue
		}
		d.add("\x1b[%d;1H", i+1)
		if fill := l.fill; fill.char == ' ' && fill != blank {
			d.out = fill.style.appendSequence(d.out)
			d.add("\x1b[2K\x1b[0m")
			end = len(l.cells)
		}
		d.out = l.append(d.out, end)
	}
}

// placeCursor moves the cursor to a row, relative to its origin mode, and sets its style and
// charsets.
func (d *drawing) placeCursor(c cursor, row int) {
	if c.origin {
		d.add("\x1b[?6h")
	}
	d.add("\x1b[%d;%dH", row+1, c.col+1)
	d.out = c.style.appendSequence(d.out)
	if c.charsets != [2]byte{'B', 'B'} {
		d.add("\x1b(%c\x1b)%c", c.charsets[0], c.charsets[1])
	}
	if c.shifted {
		d.add("\x0e")
	}
}

// plain undoes placeCursor, except for the position.
func (d *drawing) plain() { d.add("\x1b[?6l\x1b[0m\x1b(B\x1b)B\x0f") }

// wrap writes the last character of the row again, so that the next one goes to the next
// row.
func (d *drawing) wrap(s *Screen, row int) {
	l := s.lines[s.row]
	col := s.cols - 1
	if l.at(col).width == 0 {
		col--
	}
	c := l.at(col)
	d.add("\x1b[%d;%dH\x1b(B\x1b)B\x0f", row+1, col+1)
	d.out = c.style.appendSequence(d.out)
	d.add("%c%s", c.char, c.marks)
	d.out = s.style.appendSequence(d.out)
	d.add("\x1b(%c\x1b)%c", s.charsets[0], s.charsets[1])
	if s.shifted {
		d.add("\x0e")
	}
}

func (d *drawing) tabs(tabs []bool) {
	for i, stop := range tabs {
		if stop != (i > 0 && i%8 == 0) {
			d.add("\x1b[3g")
			for col, stop := range tabs {
				if stop {
					d.add("\x1b[1;%dH\x1bH", col+1)
				}
			}
			return
		}
	}
}

// modes sets the modes that differ from the defaults.
func (d *drawing) modes(m modes) {
	set := func(of []numberedMode, prefix string) {
		for _, n := range of {
			switch {
			case m.has(n.mode) == initialModes.has(n.mode):
			case m.has(n.mode):
				d.add("%s%dh", prefix, n.number)
			default:
				d.add("%s%dl", prefix, n.number)
			}
		}
	}
	set(ansiModes, "\x1b[")
	set(privateModes, "\x1b[?")
}
