//go:build unix

package terminal

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// TestKillStopped checks that the shell of this machine can end run -t that was stopped,
// in each way, and has its terminal afterwards.
func TestKillStopped(t *testing.T) {
	testkit.Need(t, "bash") // whose kill continues what it has stopped
	for _, test := range []struct {
		name string
		stop func(s *screen)
	}{
		{"escape", func(s *screen) {
			s.write("~")
			s.press("C-z")
		}},
		{"signal", func(s *screen) { s.kill(syscall.SIGTSTP) }},
		{"hard", func(s *screen) { s.kill(syscall.SIGSTOP) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, _ := newShell(t, "")
			s.line("echo $$ >pid; printf '\\033[?1049h\\033[?1000h\\033[?25l'; echo read''y")
			s.await("\nready")
			s.press("Enter")
			s.shows("far$")
			test.stop(s)
			s.await("Stopped")
			far, run := s.pid("pid"), s.children()
			s.line("kill %1")
			testkit.Gone(t, run...)
			s.blind = false // the old prompt may be on the screen that the program has left
			s.press("Enter")
			s.shows("local$")
			s.modesAreOff()
			s.line("jobs")
			s.isLocal()
			testkit.Gone(t, far)
		})
	}
}

// TestBackground checks that run -t stops when somebody continues it in the background,
// and goes on when it is in the foreground.
func TestBackground(t *testing.T) {
	testkit.Need(t, "bash") // whose jobs lists those that have stopped
	s, _ := newShell(t, "")
	s.write("~")
	s.press("C-z")
	s.await("Stopped")
	s.line("bg")
	s.await("sh &")
	s.line("until [ $(jobs -s | wc -l) = 1 ]; do sleep 0.1; done; echo it has st''opped")
	s.await("it has stopped")
	s.line("fg")
	s.await(" fg\nexec-server run")
	s.press("Enter")
	s.prompt("far$")
	s.line("exit")
	s.isLocal()
}

// TestPastedEscape checks that a pasted text passes whole, also where it looks like a
// command of the person.
func TestPastedEscape(t *testing.T) {
	s, _ := newShell(t, "")
	s.line("printf '\\033[?2004h'; echo read''y; cat")
	s.await("\nready")
	s.paste("one\n~.\n~d\ntwo")
	s.await("\n~d\ntwo")
	s.press("Enter")
	s.shows("two")
	s.press("C-d")
	s.prompt("far$")
	s.press("Enter")
	s.shows("far$\nfar$")
	s.write("~.")
	s.isLocal()
}

// paste pastes a text as a terminal does, with marks if the program has asked for them.
func (s *screen) paste(text string) {
	s.t.Helper()
	if _, err := s.tmux.Run("set-buffer", text); err != nil {
		s.t.Fatal(err)
	}
	s.before = s.shown()
	if _, err := s.tmux.Run("paste-buffer", "-p"); err != nil {
		s.t.Fatal(err)
	}
}

// modesAreOff checks that the terminal has no mode of a program that has left it.
func (s *screen) modesAreOff() {
	s.t.Helper()
	testkit.WaitFor(s.t, testkit.Patience, func() error { // tmux may not have read everything yet
		state, err := s.tmux.Run("display-message", "-p", "#{alternate_on} #{cursor_flag} #{mouse_any_flag}")
		if err == nil && strings.TrimSpace(state) != "0 1 0" {
			err = fmt.Errorf("alternate screen, cursor and mouse are %q", state)
		}
		return err
	})
}
