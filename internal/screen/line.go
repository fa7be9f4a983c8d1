package screen

import "unsafe"

// color is 0 for the default, or a number of the palette or an RGB value with its mark.
type color uint32

const (
	inPalette color = 1 << 24
	isRGB     color = 2 << 24
)

// attributes are the properties of a character besides its colours. The kind of underline
// is in the lowest bits.
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

// style is how a character looks.
type style struct {
	fg, bg, under color
	attributes    attributes
}

// cell is one place of the screen. A wide character is in the first of its two cells; the
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
	if l.fill != fill { // or a blank screen would cost as much as a full one
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

// reach makes cells up to a column, without it.
func (l *line) reach(col int) {
	for len(l.cells) < col {
		l.cells = append(l.cells, l.fill)
	}
}

// cut drops the cells from a column on.
func (l *line) cut(col int) {
	if l.fill != blank {
		l.reach(col)
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
			l.reach(from)
		}
		if from < len(l.cells) {
			clear(l.cells[from:])
			l.cells = l.cells[:from]
		}
		l.fill = fill
		return
	}
	l.reach(to)
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
	l.reach(cols)
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
