package term

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// newTestScreen returns a screen of 20 rows and 60 columns, and what it has written.
func newTestScreen() (*Screen, *bytes.Buffer) {
	var out bytes.Buffer
	gate := make(chan struct{})
	close(gate)
	return &Screen{Out: &out, Size: func() (int, int) { return 20, 60 }, Gate: gate}, &out
}

// TestScreenPassesOutput checks that output passes unchanged however it is cut, and that a
// status line comes between two sequences, not into one.
func TestScreenPassesOutput(t *testing.T) {
	text := "a\x1b[1;31mred\x1b[0m\x1b]0;title\x07b\x1b]8;;url\x1b\\c\x1b(0q\x1b(B\x1bM\x1bP1$r0m\x1b\\é\x1b[\x18d\x1b\x1b[He"
	whole := map[int]bool{} // positions between sequences
	for at, end := 0, 0; at <= len(text); at++ {
		for _, seq := range []string{"\x1b[1;31m", "\x1b[0m", "\x1b]0;title\x07", "\x1b]8;;url\x1b\\", "\x1b(0", "\x1b(B", "\x1bM", "\x1bP1$r0m\x1b\\", "\x1b[\x18", "\x1b\x1b[H"} {
			if strings.HasPrefix(text[at:], seq) {
				end = max(end, at+len(seq))
			}
		}
		whole[at] = at >= end || strings.HasPrefix(text[at:], "\x1b") && (at == 0 || text[at-1] != esc) && !strings.HasPrefix(text[at:], "\x1b\\")
	}
	for cut := range len(text) + 1 {
		s, out := newTestScreen()
		write := func(b string) {
			if n, err := s.Write([]byte(b)); n != len(b) || err != nil {
				t.Fatalf("Write: %d, %v", n, err)
			}
		}
		write(text[:cut])
		before := out.String()
		if !strings.HasPrefix(text, before) || whole[cut] && before != text[:cut] {
			t.Errorf("%q passes as %q", text[:cut], before)
		}
		s.show("status")
		s.hide()
		out.Reset()
		write(text[cut:])
		if got := before + out.String(); got != text {
			t.Errorf("cut at %d: %q passes as %q", cut, text, got)
		}
	}
}

// TestScreenStatus checks where the status line is drawn, and that output removes it.
func TestScreenStatus(t *testing.T) {
	for _, test := range []struct{ before, room string }{
		{"$ ", "\n\x1b[A"},
		{"\x1b[?1049hvi", ""},
		{"\x1b[?1049hvi\x1b[?1049l$ ", "\n\x1b[A"},
	} {
		s, out := newTestScreen()
		_, _ = s.Write([]byte(test.before))
		out.Reset()
		s.show("down", strings.Repeat("long", 20), "short")
		if want := test.room + "\x1b7\x1b[20;1H\x1b[0;7mdown; short\x1b[0m\x1b[K\x1b8"; out.String() != want {
			t.Errorf("after %q: %q, want %q", test.before, out, want)
		}
		out.Reset()
		_, _ = s.Write([]byte("output"))
		if want := "\x1b7\x1b[20;1H\x1b[0m\x1b[K\x1b8output"; out.String() != want {
			t.Errorf("after %q: %q, want %q", test.before, out, want)
		}
	}
}

// TestScreenModes checks that reset undoes what output has changed, and restore does it
// again.
func TestScreenModes(t *testing.T) {
	for _, test := range []struct{ output, off, on string }{
		{"text\x1b[31m", "", ""},
		{"\x1b[?1049h\x1b[?25l\x1b[?1h\x1b=", "\x1b>\x1b[?1l\x1b[?25h\x1b[?1049l\x1b[0m", "\x1b=\x1b[?1h\x1b[?25l\x1b[?1049h"},
		{"\x1b[?1000;1006h\x1b[?1000l", "\x1b[?1006l\x1b[0m", "\x1b[?1006h"},
		{"\x1b[?2004h\x1b[?2004l\x1b[?25l\x1b[?25h", "", ""},
		{"\x1b[2;10r\x1b(0", "\x1b7\x1b[r\x1b8\x1b(B\x1b[0m", "\x1b(0"},
		{"\x1b[>1u\x1b[>4;2m", "\x1b[<1u\x1b[>4;0m\x1b[0m", "\x1b[>1u\x1b[>4;2m"},
		{"\x1b[>1u\x1b[<u\x1b[>4;2m\x1b[>4m\x1b[2;10r\x1b[r", "", ""},
		{"\x1b[?1049h\x1bc", "", ""},
	} {
		s, out := newTestScreen()
		_, _ = s.Write([]byte(test.output))
		out.Reset()
		s.reset(false)
		off := out.String()
		out.Reset()
		s.Restore()
		if off != test.off || out.String() != test.on {
			t.Errorf("%q: off %q, want %q; on %q, want %q", test.output, off, test.off, out, test.on)
		}
	}
}

// TestScreenManyModes checks that modes that no terminal has do not hide one that must end.
func TestScreenManyModes(t *testing.T) {
	s, out := newTestScreen()
	for mode := range 200 {
		_, _ = fmt.Fprintf(s, "\x1b[?%dh", 3000+mode)
	}
	_, _ = s.Write([]byte("\x1b[?1000h\x1b[?99999999h"))
	out.Reset()
	s.reset(false)
	if off := out.String(); !strings.Contains(off, "\x1b[?1000l") || strings.Contains(off, "99999999") {
		t.Errorf("the modes end with %q", off)
	}
}

// TestScreenReplay checks that a replay leaves out what the terminal would answer.
func TestScreenReplay(t *testing.T) {
	s, out := newTestScreen()
	s.SetFilter(true)
	asking := "\x1b[c\x1b[>c\x1b[6n\x1b[?6n\x1b[18t\x1b[>q\x1b[?u\x1b[?2026$p\x1b]10;?\x07\x1b]11;?\x1b\\\x1bP+q544e\x1b\\\x1bZ"
	_, _ = s.Write([]byte("a" + asking + "\x1b[1m\x1b]0;title\x07b"))
	s.SetFilter(false)
	_, _ = s.Write([]byte("\x1b[c"))
	if want := "a\x1b[1m\x1b]0;title\x07b\x1b[c"; out.String() != want {
		t.Errorf("%q, want %q", out, want)
	}
}

// TestEscapeCharacters checks which keys are for this program.
func TestEscapeCharacters(t *testing.T) {
	const pasted = "\x1b[200~a\r~.\r~d\x1b[20\x1b[201~"
	for _, test := range []struct{ typed, passed, commands string }{
		{"ls\r", "ls\r", ""},
		{"~.", "", "."},
		{"x~.", "x~.", ""},
		{"x\r~.", "x\r", "."},
		{"x\n~d~?\r", "x\n\r", "d?"},
		{"~~.", "~.", ""},
		{"~x~.", "~x~.", ""},
		{"~\r~.", "~\r", "."},
		{"~\x1a~.", "", "\x1a."},
		{"~", "", ""},
		{pasted + "~.\r~.", pasted + "~.\r", "."},
		{"~" + pasted + "~?\r~?", "~" + pasted + "~?\r", "?"},
		{"\x1b[201~\r~.", "\x1b[201~\r", "."},
	} {
		for cut := range len(test.typed) + 1 {
			e := Escapes{Char: '~'}
			var passed, commands []byte
			for _, part := range []string{test.typed[:cut], test.typed[cut:]} {
				for rest := []byte(part); len(rest) > 0; {
					var keys []byte
					var command byte
					if keys, command, rest = e.next(rest); command != 0 {
						commands = append(commands, command)
					}
					passed = append(passed, keys...)
				}
			}
			if string(passed) != test.passed || string(commands) != test.commands {
				t.Errorf("%q cut at %d: passes %q, want %q; commands %q, want %q", test.typed, cut, passed, test.passed, commands, test.commands)
			}
		}
	}
	none := Escapes{Char: noEscape}
	if keys, command, _ := none.next([]byte("~.\xff")); string(keys) != "~.\xff" || command != 0 {
		t.Errorf("without an escape character: %q, %q", keys, command)
	}
}

// TestLeaveAfterLostKeys checks that a person can leave after keys that went nowhere,
// without Enter, when they have paused.
func TestLeaveAfterLostKeys(t *testing.T) {
	for _, pause := range []time.Duration{-time.Minute, calm} { // the first also on a slow machine
		screen, _ := newTestScreen()
		input := &InputForwarder{Screen: screen, Escapes: Escapes{Char: '~'}, Link: NewLinkMonitor("far"), bad: true}
		input.Write = func(context.Context, []byte) error { return nil }
		input.Typed([]byte("lost"))
		input.last = time.Now().Add(-pause)
		command, _ := input.Typed([]byte("~."))
		if left := command == KeyLeave; left != (pause > 0) {
			t.Errorf("%v after a key, ~. leaves: %v", pause, left)
		}
	}
}

// TestStatusFits checks what the status line says in 80 columns: how to leave comes first.
func TestStatusFits(t *testing.T) {
	screen, out := newTestScreen()
	screen.Size = func() (int, int) { return 24, 80 }
	input := &InputForwarder{Screen: screen, Escapes: Escapes{Char: '~'}, discarded: 5}
	now := time.Now()
	screen.show(input.describe(now, LinkState{server: "192.168.1.17:8765", Down: true, since: now, until: now.Add(30*time.Minute + 56*time.Second)})...)
	if !strings.Contains(out.String(), "gives up in 30m56s; ~. leaves\x1b") {
		t.Errorf("the status line: %q", out)
	}
}

// TestCutPasteEnds checks that a paste whose end went nowhere ends before the next keys.
func TestCutPasteEnds(t *testing.T) {
	screen, _ := newTestScreen()
	wrote := make(chan string, 1)
	input := &InputForwarder{Screen: screen, Escapes: Escapes{Char: '~'}, Link: NewLinkMonitor("far")}
	input.Write = func(_ context.Context, b []byte) error {
		wrote <- string(b)
		return nil
	}
	for _, step := range []struct {
		typed, want string
		bad         bool
	}{
		{"a" + pasteBegins + "one\r", "a" + pasteBegins + "one\r", false},
		{"two" + pasteEnds, "", true},
		{"b", pasteEnds + "b", false},
		{"c", "c", false},
	} {
		input.pausing = input.bad
		if input.bad = step.bad; step.bad {
			input.begin()
		}
		input.last = time.Time{}
		input.Typed([]byte(step.typed))
		if step.want == "" {
			continue
		}
		if got := <-wrote; got != step.want {
			t.Errorf("%q arrives as %q, want %q", step.typed, got, step.want)
		}
		input.Answered(<-input.Accepted())
	}
}

// TestPasteEndsWithTheCommand lets a command end in the middle of a paste: the rest is for
// nobody, and must not stay in the terminal, where the shell of this machine would find it.
func TestPasteEndsWithTheCommand(t *testing.T) {
	screen, _ := newTestScreen()
	keys, left := make(chan []byte), make(chan int)
	ended := make(chan struct{})
	go func() {
		sent := time.Now()
		for n := 1000; n > 0; n-- {
			text := "touch late\r"
			if n == 500 {
				text = "\r~.\x03" // ends the wait for the server only
			}
			select {
			case keys <- []byte(text):
			case <-ended:
				if time.Since(sent) >= burst {
					n = 0 // a paste that pauses is over, also if only this goroutine got no processor
				}
				left <- n
				return
			}
			sent = time.Now()
		}
		left <- 0
	}()
	input := &InputForwarder{Screen: screen, Keys: keys, Escapes: Escapes{Char: '~'}, Link: NewLinkMonitor("far")}
	input.last = time.Now().Add(time.Minute) // a key has just come, also if this machine is slow
	closed := make(chan struct{})
	close(closed)
	input.End(closed, false)
	close(ended)
	if n := <-left; n > 0 {
		t.Errorf("%d parts of the paste are left", n)
	}
}
