package main

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/term"
)

// fullScreen is the terminal of this program while the program draws on all of it.
type fullScreen struct {
	keyboard *os.File    // from which the keys come
	saved    *term.State // nil while the terminal is as it was
}

func (s *fullScreen) fd() int { return int(s.keyboard.Fd()) }

// The screen is the alternate one, without a cursor, and without wrapping: a wide character
// at the end of a line must not begin another one.
const (
	enterFullScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leaveFullScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

func (s *fullScreen) enter() error {
	state, err := term.MakeRaw(s.fd())
	if err != nil {
		return fmt.Errorf("cannot take over the terminal: %w", err)
	}
	s.saved = state
	_, err = os.Stdout.WriteString(enterFullScreen)
	return err
}

// leave gives the terminal back as it was.
func (s *fullScreen) leave() {
	if s.saved != nil {
		_, _ = os.Stdout.WriteString(leaveFullScreen)
		flushInput(s.fd())
		_ = term.Restore(s.fd(), s.saved)
		s.saved = nil
	}
}

// readKeys reads the keyboard once for each element of want. It ends with the program, or
// with the keyboard: then it closes keys.
func (s *fullScreen) readKeys(want <-chan struct{}, keys chan<- string) {
	defer close(keys)
	buf, kept := make([]byte, 64), 0
	for range want {
		n, err := s.keyboard.Read(buf[kept:])
		if err != nil {
			return
		}
		n, kept = n+kept, 0
		if i := bytes.IndexByte(buf[n-min(2, n):n], esc); n == len(buf) && i >= 0 {
			kept = 2 - i // of an arrow, whose end has not been read yet
		}
		keys <- string(buf[:n-kept])
		copy(buf, buf[n-kept:n])
	}
}
