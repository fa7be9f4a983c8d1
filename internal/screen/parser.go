package screen

// parser is the state of parsing escape sequences.
type parser struct {
	state     state
	pending   []byte // of a sequence or character that is not complete
	skipsRest bool   // after a gap

	params        []param
	private       byte // of < = > ? at the start of the parameters, or 0
	intermediates []byte
	text          []byte // of a string
}

type state byte

const (
	ground state = iota
	escape
	escapeIntermediate
	control
	controlIntermediate
	controlIgnored
	command   // OSC, of which the title is read
	windowTag // ESC k, the title as screen sets it
	ignored   // DCS, SOS, PM, APC
)

// param is a parameter of a control sequence.
type param struct {
	value int  // -1 if it is absent
	sub   bool // it follows a colon
}

// Limits of a sequence. Longer ones have no effect.
const (
	maxParams     = 32
	maxValue      = 65535
	maxText       = 1024
	maxPending    = 2048
	intermediates = 2
)

func (p *parser) toGround() {
	p.state, p.pending = ground, p.pending[:0]
}

// begin starts a sequence after ESC.
func (p *parser) begin(s state) {
	p.state = s
	p.params, p.private = p.params[:0], 0
	p.intermediates, p.text = p.intermediates[:0], p.text[:0]
}

// parse interprets a byte in any state.
func (s *Screen) parse(c byte) {
	const (
		bell       = 0x07
		cancel     = 0x18
		substitute = 0x1a
		esc        = 0x1b
	)
	p := &s.parser
	inString := p.state >= command
	switch {
	case c == cancel, c == substitute:
		p.toGround()
	case c == esc:
		if inString {
			s.endString()
		}
		p.begin(escape)
		p.pending = append(p.pending[:0], esc)
	case p.state == command && c == bell:
		s.endString()
		p.toGround()
	case inString:
		s.stringByte(c)
	case c < ' ':
		s.execute(c) // also within a sequence
	case p.state == ground, c >= 0x7f: // DEL and non-ASCII bytes have no meaning in a sequence
	default:
		if len(p.pending) < maxPending {
			p.pending = append(p.pending, c)
		} else if p.state == control || p.state == controlIntermediate {
			p.state = controlIgnored
		}
		s.sequenceByte(c)
	}
}

// sequenceByte interprets a printable byte of an escape or control sequence.
func (s *Screen) sequenceByte(c byte) {
	p := &s.parser
	switch p.state {
	case escape, escapeIntermediate:
		s.escapeByte(c)
	case control:
		switch {
		case c >= '0' && c <= ';':
			p.parameter(c)
		case c >= '<' && c <= '?':
			if len(p.pending) != len("\x1b[?") {
				p.state = controlIgnored
			}
			p.private = c
		case c < '0':
			p.intermediate(c, controlIntermediate, controlIgnored)
		default:
			s.control(c)
		}
	case controlIntermediate:
		switch {
		case c < '0':
			p.intermediate(c, controlIntermediate, controlIgnored)
		case c < '@':
			p.state = controlIgnored
		default:
			s.control(c)
		}
	case controlIgnored:
		if c >= '@' {
			p.toGround()
		}
	}
}

func (s *Screen) escapeByte(c byte) {
	p := &s.parser
	if c < '0' {
		p.intermediate(c, escapeIntermediate, escapeIntermediate)
		return
	}
	if p.state == escape {
		switch c {
		case '[':
			p.begin(control)
			return
		case ']':
			p.begin(command)
			return
		case 'k':
			p.begin(windowTag)
			return
		case 'P', 'X', '^', '_':
			p.begin(ignored)
			return
		}
	}
	p.toGround()
	s.escape(string(p.intermediates), c)
}

// intermediate adds an intermediate character, or goes to another state if there are too
// many.
func (p *parser) intermediate(c byte, next, tooMany state) {
	p.state = next
	if len(p.intermediates) == intermediates {
		p.intermediates[intermediates-1] = 0 // which nothing matches
		p.state = tooMany
		return
	}
	p.intermediates = append(p.intermediates, c)
}

// parameter adds a character to the parameters.
func (p *parser) parameter(c byte) {
	if len(p.params) == 0 {
		p.params = append(p.params, param{value: -1})
	}
	if c == ';' || c == ':' {
		if len(p.params) == maxParams {
			p.state = controlIgnored
			return
		}
		p.params = append(p.params, param{value: -1, sub: c == ':'})
		return
	}
	last := &p.params[len(p.params)-1]
	last.value = min(max(last.value, 0)*10+int(c-'0'), maxValue)
}

// stringByte adds a byte to a string. Only the beginning of ignored strings is kept.
func (s *Screen) stringByte(c byte) {
	p := &s.parser
	if p.state == ignored || c < ' ' || c == 0x7f || len(p.text) > maxText {
		return
	}
	p.text, p.pending = append(p.text, c), append(p.pending, c)
}

// param returns a parameter, or the default if it is absent or 0.
func (p *parser) param(i, otherwise int) int {
	if i < len(p.params) && p.params[i].value > 0 {
		return p.params[i].value
	}
	return otherwise
}
