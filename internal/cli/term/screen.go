package term

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

// Screen writes the output of a command to the local terminal, and shows a status line while
// there is no output. It follows the escape sequences in the output without interpreting the
// text. It writes each sequence as a whole, because a status line inside would break it. It
// tracks the modes that the command has switched on, to switch them off when the command
// continues without this terminal.
type Screen struct {
	Out  io.Writer
	Size func() (rows, cols int)
	Dumb bool // the terminal understands no escape sequences

	Written chan struct{} // receives after output of the command

	mu       sync.Mutex
	Gate     chan struct{} // closed while the terminal is ready for output
	seq      sequence
	modes    modes
	filter   bool   // leave out the sequences that the terminal would answer
	status   string // the line that is shown, or ""
	beeped   time.Time
	reported string // the last status on a dumb terminal
}

// Write implements io.Writer for the output of the command.
func (s *Screen) Write(b []byte) (int, error) {
	s.lock()
	defer s.mu.Unlock()
	defer func() {
		select {
		case s.Written <- struct{}{}:
		default:
		}
	}()
	var out []byte
	if s.status != "" {
		out = s.eraseLocked()
	}
	if len(out) == 0 && s.seq.state == inText && bytes.IndexByte(b, esc) < 0 {
		_, err := s.Out.Write(b)
		return len(b), err
	}
	out = s.followLocked(out, b)
	if len(out) == 0 {
		return len(b), nil
	}
	_, err := s.Out.Write(out)
	return len(b), err
}

// lock locks mu while the terminal is ready for output.
func (s *Screen) lock() {
	for {
		s.mu.Lock()
		gate := s.Gate
		select {
		case <-gate:
			return
		default:
		}
		s.mu.Unlock()
		<-gate
	}
}

// followLocked appends the text and the complete sequences of b to out.
func (s *Screen) followLocked(out, b []byte) []byte {
	for len(b) > 0 {
		if s.seq.state == inText {
			n := bytes.IndexByte(b, esc)
			if n < 0 {
				return append(out, b...)
			}
			out, b = append(out, b[:n]...), b[n:]
		}
		done := s.seq.add(b[0])
		b = b[1:]
		switch {
		case done:
			s.modes.note(s.seq.text)
			if !s.filter || !asks(s.seq.text) {
				out = append(out, s.seq.text...)
			}
			s.seq.text = s.seq.text[:0]
		case len(s.seq.text) > maxSequence:
			out = append(out, s.seq.text...)
			s.seq.text = s.seq.text[:0]
		}
	}
	return out
}

// show shows the parts that fit in a status line in the last row. On the normal screen it scrolls
// first, so that no text is lost. The cursor does not move.
func (s *Screen) show(parts ...string) {
	if !s.mu.TryLock() {
		return // the terminal is slow: skip the status line
	}
	defer s.mu.Unlock()
	rows, cols := s.Size()
	text := parts[0]
	for _, part := range parts[1:] {
		if s.Dumb || len(text)+len("; ")+len(part) < cols {
			text += "; " + part
		}
	}
	switch {
	case text == s.status:
	case s.Dumb:
		s.reportLocked(text)
	case rows < 2 || cols < 20 || s.seq.state != inText && len(s.seq.text) == 0: // in the middle of a long sequence
	default:
		line := []rune(text)
		if len(line) > cols-1 {
			line = line[:cols-1]
		}
		room := ""
		if s.status == "" && !s.modes.alternate() {
			room = "\n\x1b[A"
		}
		_, _ = fmt.Fprintf(s.Out, "%s\x1b7\x1b[%d;1H\x1b[0;7m%s\x1b[0m\x1b[K\x1b8", room, rows, string(line))
		s.status = text
	}
}

// reportLocked prints a status once on a dumb terminal.
func (s *Screen) reportLocked(text string) {
	if s.reported == "" {
		s.reported = text
		_, _ = fmt.Fprintf(s.Out, "\r\n[%s]\r\n", text)
	}
}

// hide removes the status line.
func (s *Screen) hide() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reported = ""
	if s.status != "" {
		_, _ = s.Out.Write(s.eraseLocked())
	}
}

// eraseLocked returns the sequence that removes the status line.
func (s *Screen) eraseLocked() []byte {
	s.status = ""
	rows, _ := s.Size()
	return fmt.Appendf(nil, "\x1b7\x1b[%d;1H\x1b[0m\x1b[K\x1b8", rows)
}

// Print writes a message of this program at the cursor, and removes the status line, which the
// message might overwrite or scroll.
func (s *Screen) Print(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.printLocked(text)
}

func (s *Screen) printLocked(text string) {
	if s.status != "" {
		text = string(s.eraseLocked()) + text
	}
	_, _ = io.WriteString(s.Out, text)
}

// Insert is Print for a message that belongs into the output.
func (s *Screen) Insert(text string) {
	s.lock()
	defer s.mu.Unlock()
	s.printLocked(text)
}

// beep signals that a key had no effect.
func (s *Screen) beep() {
	if time.Since(s.beeped) < 200*time.Millisecond || !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	s.beeped = time.Now()
	_, _ = s.Out.Write([]byte{'\a'})
}

// resetPatience bounds the wait for a terminal that accepts no output.
const resetPatience = 500 * time.Millisecond

// reset switches off the modes that the command has switched on, such as the alternate screen and
// mouse reports. Output of the command waits until Restore. With fresh, the following output
// starts on a new line.
func (s *Screen) reset(fresh bool) {
	for limit := time.Now().Add(resetPatience); !s.mu.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			return
		}
	}
	defer s.mu.Unlock()
	s.Gate = make(chan struct{})
	var out []byte
	if s.status != "" {
		out = s.eraseLocked()
	}
	if !s.Dumb {
		out = append(out, s.modes.off()...)
	}
	if fresh {
		out = append(out, "\r\n"...)
	}
	_, _ = s.Out.Write(out)
}

// Restore switches the modes on again after reset, and releases the output.
func (s *Screen) Restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on := s.modes.on(); !s.Dumb && len(on) > 0 {
		_, _ = s.Out.Write(on)
	}
	select {
	case <-s.Gate:
	default:
		close(s.Gate)
	}
}

// whole reports whether the program owns the whole screen.
func (s *Screen) whole() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.modes.alternate()
}

// SetFilter sets whether the output is a replay. Its queries are filtered out, because the
// terminal must not answer them again.
func (s *Screen) SetFilter(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filter = on
}
