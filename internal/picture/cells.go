package picture

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"execserver/internal/screen"
)

// A style is how a terminal shows a character. Colors are as in CSS; empty ones are the
// terminal's own.
type style struct {
	foreground, background                  string
	bold, dim, italic, underlined, reversed bool
}

// A run is a piece of a line in one style.
type run struct {
	column int // of its first character, from 0
	text   string
	style  style
}

// width is the number of columns.
func (r run) width() (columns int) {
	for _, c := range r.text {
		columns += screen.Width(c)
	}
	return columns
}

// A reader passes through a text with escape sequences. Only those that set a style count;
// no others reach the picture, nor does any control character.
type reader struct {
	text  string
	style style
}

// line reads up to the next line break, and keeps what fits into the columns. A wide
// character begins a run, so that what follows it is in its column in any font.
func (r *reader) line(columns int) (runs []run) {
	column, wide := 0, false // wide: the character before is
	for r.text != "" {
		c, rest := cut(r.text)
		switch {
		case c == '\n':
			r.text = rest
			return runs
		case c == '\x1b':
			r.escape()
			continue
		case unicode.IsPrint(c) && screen.Width(c) > 0 && column+screen.Width(c) <= columns:
			n := len(runs)
			if n > 0 && runs[n-1].style == r.style && screen.Width(c) == 1 && !wide {
				runs[n-1].text += string(c)
			} else {
				runs = append(runs, run{column: column, text: string(c), style: r.style})
			}
			column += screen.Width(c)
			wide = screen.Width(c) == 2
		}
		r.text = rest
	}
	return runs
}

func cut(text string) (first rune, rest string) {
	for i, c := range text {
		if i > 0 {
			return first, text[i:]
		}
		first = c
	}
	return first, ""
}

// escape reads an escape sequence, and follows it if it sets a style.
func (r *reader) escape() {
	text := r.text[1:]
	switch {
	case strings.HasPrefix(text, "["):
		end := strings.IndexFunc(text[1:], func(c rune) bool { return c >= '@' && c <= '~' })
		if end < 0 {
			r.text = ""
			return
		}
		if text[1+end] == 'm' {
			r.style.set(text[1 : 1+end])
		}
		r.text = text[2+end:]
	case strings.HasPrefix(text, "]"): // a title or a link: up to BEL or ESC \
		end := strings.IndexAny(text, "\a\x1b")
		if end < 0 {
			r.text = ""
			return
		}
		r.text = strings.TrimPrefix(text[end+1:], `\`)
	default:
		_, r.text = cut(text)
	}
}

// set follows the parameters of a sequence that sets a style.
func (s *style) set(parameters string) {
	numbers := strings.FieldsFunc(parameters, func(c rune) bool { return c == ';' || c == ':' })
	if len(numbers) == 0 {
		*s = style{}
	}
	for len(numbers) > 0 {
		n, err := strconv.Atoi(numbers[0])
		numbers = numbers[1:]
		switch {
		case err != nil:
		case n == 0:
			*s = style{}
		case n == 1:
			s.bold = true
		case n == 2:
			s.dim = true
		case n == 3:
			s.italic = true
		case n == 4:
			s.underlined = true
		case n == 7:
			s.reversed = true
		case n == 22:
			s.bold, s.dim = false, false
		case n == 23:
			s.italic = false
		case n == 24:
			s.underlined = false
		case n == 27:
			s.reversed = false
		case n >= 30 && n <= 37:
			s.foreground = indexed(n - 30)
		case n == 38:
			s.foreground, numbers = color(numbers)
		case n == 39:
			s.foreground = ""
		case n >= 40 && n <= 47:
			s.background = indexed(n - 40)
		case n == 48:
			s.background, numbers = color(numbers)
		case n == 49:
			s.background = ""
		case n >= 90 && n <= 97:
			s.foreground = indexed(n - 90 + 8)
		case n >= 100 && n <= 107:
			s.background = indexed(n - 100 + 8)
		}
	}
}

// color reads the numbers after 38 or 48. One that is not valid is the terminal's own.
func color(numbers []string) (string, []string) {
	values := make([]int, 0, 4)
	for _, text := range numbers[:min(4, len(numbers))] {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 255 {
			break
		}
		values = append(values, n)
	}
	switch {
	case len(values) >= 2 && values[0] == 5:
		return indexed(values[1]), numbers[2:]
	case len(values) == 4 && values[0] == 2:
		return fmt.Sprintf("#%02x%02x%02x", values[1], values[2], values[3]), numbers[4:]
	}
	return "", nil
}

// palette has the first sixteen colors, which are readable on the dark background.
var palette = [...]string{
	"#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4",
	"#6e7681", "#ffa198", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#ffffff",
}

// indexed returns one of 256 colors: the palette, a cube of six shades for each of red,
// green and blue, and 24 grays.
func indexed(n int) string {
	switch {
	case n < len(palette):
		return palette[n]
	case n < 232:
		shade := func(n int) int {
			if n == 0 {
				return 0
			}
			return 55 + 40*n
		}
		n -= 16
		return fmt.Sprintf("#%02x%02x%02x", shade(n/36), shade(n/6%6), shade(n%6))
	default:
		gray := 8 + 10*(n-232)
		return fmt.Sprintf("#%02x%02x%02x", gray, gray, gray)
	}
}
