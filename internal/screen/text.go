package screen

import "strings"

// Rows returns the text of each row, without blanks at its end. What a program has hidden
// is blank.
func (s *Screen) Rows() []string {
	rows := make([]string, s.rows)
	var b strings.Builder
	for i, l := range s.lines {
		b.Reset()
		for col := range s.cols {
			c := l.at(col)
			switch {
			case c.width == 0:
			case c.style.attributes&hidden != 0:
				b.WriteString("  "[:c.width])
			default:
				b.WriteRune(c.char)
				b.WriteString(c.marks)
			}
		}
		rows[i] = strings.TrimRight(b.String(), " ")
	}
	return rows
}

// StyledRows returns the rows with the sequences that set their colours and attributes
// (SGR). Each begins and ends in the default style. Blanks with a style are part of a row.
func (s *Screen) StyledRows() []string {
	rows := make([]string, s.rows)
	var b []byte
	for i, l := range s.lines {
		b = l.append(b[:0], l.end(s.cols))
		rows[i] = string(b)
	}
	return rows
}

// end returns the column after the last cell that is not blank.
func (l *line) end(cols int) int {
	for cols > 0 && l.at(cols-1) == blank {
		cols--
	}
	return cols
}

// append appends the text of a line with its styles, up to a column.
func (l *line) append(b []byte, end int) []byte {
	var current style
	for col := range end {
		c := l.at(col)
		if c.width == 0 {
			continue
		}
		if c.style != current {
			b, current = c.style.appendSequence(b), c.style
		}
		b = append(b, string(c.char)...)
		b = append(b, c.marks...)
	}
	if current != (style{}) {
		b = append(b, "\x1b[0m"...)
	}
	return b
}
