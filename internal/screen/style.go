package screen

import "strconv"

// apply changes the style by the parameters of a control sequence (SGR).
func (st *style) apply(params []param) {
	if len(params) == 0 {
		*st = style{}
	}
	for i := 0; i < len(params); i++ {
		end := i + 1
		for end < len(params) && params[end].sub {
			end++
		}
		n := max(params[i].value, 0)
		switch {
		case n == 38 || n == 48 || n == 58:
			c, used, ok := colorOf(params[i:], end-i)
			if ok {
				st.setColor(n, c)
			}
			i += used - 1
			continue
		case n == 4 && end > i+1:
			if kind := params[i+1].value; kind >= 0 && kind <= 5 {
				st.attributes = st.attributes&^underlines | attributes(kind)
			}
		case end > i+1: // subparameters without a meaning
		default:
			st.applyOne(n)
		}
		i = end - 1
	}
}

func (st *style) setColor(n int, c color) {
	switch n {
	case 38:
		st.fg = c
	case 48:
		st.bg = c
	case 58:
		st.under = c
	}
}

// colorOf parses the colour at the beginning of params, of which subs are joined by colons. It
// returns the number of parameters used.
func colorOf(params []param, subs int) (c color, used int, ok bool) {
	values := params
	if subs > 1 {
		values = params[:subs]
	}
	if len(values) < 2 {
		return 0, len(values), false
	}
	numbers, used := values[2:], 2
	switch values[1].value {
	case 5:
		if len(numbers) < 1 {
			return 0, max(used, subs), false
		}
		n := max(numbers[0].value, 0)
		return inPalette | color(n&0xff), max(used+1, subs), n < 256
	case 2:
		if subs > 5 { // the first is the number of a colour space
			numbers = numbers[1:]
		}
		if len(numbers) < 3 {
			return 0, max(len(values), subs), false
		}
		c = isRGB
		ok = true
		for i, p := range numbers[:3] {
			n := max(p.value, 0)
			c |= color(n&0xff) << (16 - 8*i)
			ok = ok && n < 256
		}
		return c, max(used+3, subs), ok
	}
	return 0, max(used, subs), false
}

func (st *style) applyOne(n int) {
	switch {
	case n == 0:
		*st = style{}
	case n == 4:
		st.attributes = st.attributes&^underlines | 1
	case n == 6:
		st.attributes |= blink
	case n == 21:
		st.attributes = st.attributes&^underlines | 2
	case n == 22:
		st.attributes &^= bold | faint
	case n == 24:
		st.attributes &^= underlines
	case n == 39:
		st.fg = 0
	case n == 49:
		st.bg = 0
	case n == 59:
		st.under = 0
	case n >= 30 && n < 38:
		st.fg = inPalette | color(n-30)
	case n >= 40 && n < 48:
		st.bg = inPalette | color(n-40)
	case n >= 90 && n < 98:
		st.fg = inPalette | color(n-90+8)
	case n >= 100 && n < 108:
		st.bg = inPalette | color(n-100+8)
	default:
		for _, a := range switches {
			switch n {
			case a.on:
				st.attributes |= a.attribute
			case a.off:
				st.attributes &^= a.attribute
			}
		}
	}
}

// switches are the attributes with the numbers that switch them on and off.
var switches = []struct {
	attribute attributes
	on, off   int
}{
	{bold, 1, 22},
	{faint, 2, 22},
	{italic, 3, 23},
	{blink, 5, 25},
	{reverse, 7, 27},
	{hidden, 8, 28},
	{struck, 9, 29},
	{overlined, 53, 55},
}

// appendSequence appends the sequence that sets the style, independently of the previous one.
func (st style) appendSequence(b []byte) []byte {
	b = append(b, "\x1b[0"...)
	switch kind := st.attributes & underlines; kind {
	case 0:
	case 1:
		b = append(b, ";4"...)
	default:
		b = append(b, ";4:"...)
		b = append(b, '0'+byte(kind))
	}
	for _, a := range switches {
		if st.attributes&a.attribute != 0 {
			b = append(b, ';')
			b = strconv.AppendInt(b, int64(a.on), 10)
		}
	}
	b = st.fg.appendTo(b, 30)
	b = st.bg.appendTo(b, 40)
	b = st.under.appendTo(b, 50)
	return append(b, 'm')
}

// appendTo appends the parameters of a colour. first is 30 for that of the text, 40 for
// the background, 50 for the underline.
func (c color) appendTo(b []byte, first int64) []byte {
	n := int64(c & 0xffffff)
	number := func(text string, n int64) {
		b = append(b, text...)
		b = strconv.AppendInt(b, n, 10)
	}
	switch {
	case c == 0:
	case c&isRGB != 0:
		number(";", first+8)
		number(";2;", n>>16)
		number(";", n>>8&0xff)
		number(";", n&0xff)
	case n < 8 && first < 50:
		number(";", first+n)
	case n < 16 && first < 50:
		number(";", first+60+n-8)
	default:
		number(";", first+8)
		number(";5;", n)
	}
	return b
}
