package screen

import (
	"strings"
	"unicode"
	"unsafe"

	eastasian "golang.org/x/text/width"
)

// color is 0 for the default, or a number of the palette or an RGB value with its mark.
type color uint32

const (
	inPalette color = 1 << 24
	isRGB     color = 2 << 24
)

// attributes are the properties of a character other than its colours. The lowest bits are the
// kind of underline.
type attributes uint16

const (
	underlines attributes = 7 // mask: 0 none, 1 single, 2 double, 3 curly, 4 dotted, 5 dashed
	bold       attributes = 1 << (iota + 2)
	faint
	italic
	blink
	reverse
	hidden
	struck
	overlined
)

// style is the style of a character.
type style struct {
	fg, bg, under color
	attributes    attributes
}

// cell is one position of the screen. A wide character is in the first of its two cells; the
// second has width 0.
type cell struct {
	char  rune
	width uint8
	style style
	marks string // combining characters
}

// maxMarks bounds the bytes of combining characters of a cell.
const maxMarks = 24

var blank = cell{char: ' ', width: 1}

// line is a row of the screen. The cells after the last of cells are like fill, so that
// clearing a line takes no time.
type line struct {
	cells []cell
	fill  cell
}

func (l *line) memory() int {
	n := int(unsafe.Sizeof(line{})) + cap(l.cells)*int(unsafe.Sizeof(cell{}))
	for i := range l.cells {
		n += len(l.cells[i].marks)
	}
	return n
}

// clear makes all cells like fill.
func (l *line) clear(fill cell) {
	if len(l.cells) > 0 {
		clear(l.cells) // their marks
		l.cells = l.cells[:0]
	}
	if l.fill != fill { // otherwise a blank screen would use as much memory as a full one
		l.fill = fill
	}
}

// at returns a cell.
func (l *line) at(col int) cell {
	if col < len(l.cells) {
		return l.cells[col]
	}
	return l.fill
}

// extend makes cells up to a column, without it.
func (l *line) extend(col int) {
	for len(l.cells) < col {
		l.cells = append(l.cells, l.fill)
	}
}

// truncate drops the cells from a column on.
func (l *line) truncate(col int) {
	if l.fill != blank {
		l.extend(col)
		l.fill = blank
	}
	if col < len(l.cells) {
		l.split(col)
		clear(l.cells[col:])
		l.cells = l.cells[:col]
	}
}

// erase makes the cells from one column to another, without it, like fill. cols is the
// width of the screen.
func (l *line) erase(from, to, cols int, fill cell) {
	if from >= to {
		return
	}
	l.split(from)
	l.split(to)
	if to >= cols {
		if l.fill != fill {
			l.extend(from)
		}
		if from < len(l.cells) {
			clear(l.cells[from:])
			l.cells = l.cells[:from]
		}
		l.fill = fill
		return
	}
	l.extend(to)
	for i := from; i < to; i++ {
		l.cells[i] = fill
	}
}

// split replaces a wide character by blanks if the column is in its middle.
func (l *line) split(col int) {
	if col < 1 || col >= len(l.cells) || l.cells[col].width != 0 {
		return
	}
	for _, i := range []int{col - 1, col} {
		l.cells[i].char, l.cells[i].width, l.cells[i].marks = ' ', 1, ""
	}
}

// shift moves the cells from a column on by n, to the right or, if negative, to the left.
func (l *line) shift(col, n, cols int, fill cell) {
	l.extend(cols)
	l.split(col)
	if n > 0 {
		n = min(n, cols-col)
		l.split(cols - n)
		copy(l.cells[col+n:], l.cells[col:cols-n])
		l.erase(col, col+n, cols, fill)
		return
	}
	n = min(-n, cols-col)
	l.split(col + n)
	copy(l.cells[col:], l.cells[col+n:])
	clear(l.cells[cols-n:])
	l.cells, l.fill = l.cells[:cols-n], fill
}

// width returns the number of columns of a character. One without columns combines with the
// character before it.
func width(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case r >= 0x1160 && r < 0x1200: // vowels and finals of Korean syllables
		return 0
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	}
	switch eastasian.LookupRune(r).Kind() {
	case eastasian.EastAsianWide, eastasian.EastAsianFullwidth:
		return 2
	}
	return 1
}

// drawings are the characters of the second charset, from '_' on.
var drawings = []rune(" ◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")

// Rows returns the text of each row, without trailing blanks. Hidden text is blank.
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
