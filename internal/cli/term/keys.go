package term

import (
	"fmt"

	"github.com/spf13/pflag"
)

// noEscape means that no escape character is set.
const noEscape = -1

// Escapes finds user commands among the keys: the escape character at the start of a line, and a
// second key, as in ssh. It ignores text that the terminal marks as pasted.
type Escapes struct {
	Char    int  // the escape character, or noEscape
	middle  bool // of a line
	pending bool // the escape character has come, and its second key has not
	Paste   Paste
}

// The second keys of user commands.
const (
	KeyLeave   = '.'
	KeyDetach  = 'd'
	KeyHelp    = '?'
	KeySuspend = 26 // ^Z
)

// next returns the keys before the first command, the second key of that command or 0, and the
// remaining keys.
func (e *Escapes) next(b []byte) (keys []byte, key byte, rest []byte) {
	for i, c := range b {
		e.Paste.follow(c)
		switch {
		case e.pending:
			e.pending = false
			switch {
			case c == KeyLeave, c == KeyDetach, c == KeyHelp, c == KeySuspend:
				e.middle = false
				return keys, c, b[i+1:]
			case int(c) != e.Char:
				keys = append(keys, byte(e.Char))
			}
			keys = append(keys, c)
			e.middle = !endsLine(c)
		case int(c) == e.Char && !e.middle && !e.Paste.on:
			e.pending = true
		default:
			keys = append(keys, c)
			e.middle = !endsLine(c)
		}
	}
	return keys, 0, nil
}

// restart makes the next key the first of a line, unless it is pasted.
func (e *Escapes) restart() { e.middle, e.pending = false, false }

// Paste tracks text that the terminal marks as pasted, if the program has requested that.
type Paste struct {
	on   bool // between the marks
	mark int  // bytes of the next mark that have come
}

// The marks around pasted text.
const (
	pasteBegins = "\x1b[200~"
	pasteEnds   = "\x1b[201~"
)

func (p *Paste) follow(c byte) {
	mark := pasteBegins
	if p.on {
		mark = pasteEnds
	}
	switch {
	case c == mark[p.mark]:
		p.mark++
	case c == esc:
		p.mark = 1
	default:
		p.mark = 0
	}
	if p.mark == len(mark) {
		p.on, p.mark = !p.on, 0
	}
}

func endsLine(c byte) bool { return c == '\r' || c == '\n' }

// ParseEscape parses --escape-char like ssh: a character, ^ and a letter, or none.
func ParseEscape(text string) (int, error) {
	switch {
	case text == "none":
		return noEscape, nil
	case len(text) == 1 && text[0] < 128:
		return int(text[0]), nil
	case len(text) == 2 && text[0] == '^' && text[1] >= '?' && text[1] < 128:
		return int(text[1]) & 31, nil
	}
	return 0, fmt.Errorf("%q is not an escape character; give one character, ^ and a letter, or none", text)
}

// escapeName spells an escape character for people.
func escapeName(char int) string {
	if char < ' ' {
		return "^" + string(rune(char+'@'))
	}
	return string(rune(char))
}

// AddEscapeFlag defines --escape-char.
func AddEscapeFlag(f *pflag.FlagSet, char *string) {
	f.StringVar(char, "escape-char", "~", "on a terminal: the escape `CHARACTER`, as in ssh, also ^ and a letter, or none; with ? after it, it lists the escapes")
}

// EscapeHelp lists the user commands, for a terminal in raw mode.
func EscapeHelp(char int, attached, observing bool) string {
	c := escapeName(char)
	text := "\r\nAt the start of a line:\r\n"
	switch {
	case observing:
		text += " " + c + ".   leave, as ^C does\r\n"
	case attached:
		text += " " + c + ".   leave; the command continues\r\n"
	default:
		text += " " + c + ".   leave, and end the command\r\n"
	}
	if !observing {
		text += " " + c + "d   detach: the command continues, and 'exec-server attach' finds it\r\n"
	}
	return text +
		" " + c + "^Z  suspend this program\r\n" +
		" " + c + "?   print this text\r\n" +
		" " + c + c + "   type " + c + "\r\n"
}
