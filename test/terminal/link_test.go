//go:build unix

package terminal

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// cutTime is how long the link is down: long enough for the status line, or what
// EXEC_SERVER_TEST_CUT says.
func cutTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("EXEC_SERVER_TEST_CUT")
	if text == "" {
		return 5 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestCutLink checks that a shell goes on after the link was down: the screen is as it
// was, what was typed meanwhile has gone nowhere, and what the command wrote meanwhile is
// there.
func TestCutLink(t *testing.T) {
	s, network := newShell(t, "")
	s.line("(until [ -e down ]; do sleep 0.1; done; echo mean''while) &")
	s.prompt("far$")
	s.line("echo be''fore")
	s.await("before")
	down := time.Now()
	network.Set(testkit.LinkRefused)
	s.await("no link to 127.0.0.1")
	s.await("~. leaves")
	s.write("echo un''seen\r")
	s.await("keys went nowhere")
	s.until("does not show the prompt beside the status line", func(shown string) bool {
		return strings.Contains(shown, "before\nfar$")
	})
	if err := os.WriteFile(filepath.Join(s.far, "down"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for time.Since(down) < cutTime(t) {
		s.shows("no link to 127.0.0.1")
		time.Sleep(100 * time.Millisecond) // the test is about what happens in this time
	}
	network.Set(testkit.LinkOpen)
	s.gone("no link")
	s.await("meanwhile")
	s.gone("link is back")
	s.press("Enter")
	s.prompt("far$")
	s.line("echo af''ter")
	s.await("after")
	if shown := s.shown(); strings.Contains(shown, "seen") || !strings.Contains(shown, "before") {
		t.Errorf("the screen:\n%s", shown)
	}
	s.line("exit")
	s.isLocal()
}

// careful draws its screen only when the size is another one, as programs with curses do.
const careful = `size= changed=1
printf '\033[?1049h'
trap changed=1 WINCH
while sleep 0.05; do
	[ $changed ] || continue
	changed= now=$(stty size)
	[ "$now" = "$size" ] && continue
	size=$now
	printf '\033[H\033[2J'
	seq $((${size% *} - 1))
	printf 'last line'
done
`

// TestCutLinkInPrograms checks that the screen of a program that owns the whole screen is
// after a cut exactly what it was, with the last line that the status line had covered,
// also if the program is slow.
func TestCutLinkInPrograms(t *testing.T) {
	for _, test := range []struct {
		name, program, command string
		prepare                func(s *screen)
	}{
		{"editor", "vi", "exec vi -u NONE -N -c 'set ruler' text", func(s *screen) {
			s.await("\n19\n")
			s.press("1", "9", "G", "A")
			s.await("-- INSERT --")
			s.write("!")
			s.await("\n19!\n-- INSERT --")
		}},
		{"pager", "less", "exec less text", func(s *screen) {
			s.await("\n19\ntext")
			s.press("G")
			s.await("\n100\n(END)")
		}},
		{"careful", "seq", "exec sh careful", func(s *screen) { s.await("\n19\nlast line") }},
	} {
		for _, speed := range []string{"quick", "slow"} {
			t.Run(test.name+"/"+speed, func(t *testing.T) {
				testkit.Need(t, test.program)
				s, network := newShell(t, "")
				if err := os.WriteFile(filepath.Join(s.far, "careful"), []byte(careful), 0o600); err != nil {
					t.Fatal(err)
				}
				s.line("seq 100 >text; echo $$ >pid; " + test.command)
				test.prepare(s)
				before := s.shown()
				network.Set(testkit.LinkRefused)
				s.await("no link to 127.0.0.1")
				resume := func() {}
				if speed == "slow" {
					resume = s.pause(s.pid("pid"))
				}
				network.Set(testkit.LinkOpen)
				s.gone("no link")
				if speed == "slow" {
					time.Sleep(300 * time.Millisecond) // the test is about what happens in this time
				}
				resume()
				s.until("is not what it was:\n"+before+"\nbut", func(shown string) bool { return shown == before })
				// A key that comes together with a new size may be lost in the program.
				if err := syscall.Kill(s.pid("pid"), syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				s.prompt("local$")
			})
		}
	}
}

// pause stops a process elsewhere, and returns what continues it.
func (s *screen) pause(pid int) (resume func()) {
	s.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	resume = sync.OnceFunc(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	s.t.Cleanup(resume)
	return resume
}

// TestHelpWithoutLink checks that the list of keys replaces the status line, which comes
// back below it.
func TestHelpWithoutLink(t *testing.T) {
	s, network := newShell(t, "")
	s.line("seq 100")
	s.await("\n100\n")
	network.Set(testkit.LinkRefused)
	s.await("no link to 127.0.0.1")
	s.write("~?")
	s.await("print this text")
	s.until("does not show the list and then the status line", func(shown string) bool {
		return strings.Contains(shown, "\nAt the start of a line:\n") && strings.Contains(shown, "no link to 127.0.0.1")
	})
	if strings.Count(s.shown(), "no link") != 1 {
		t.Errorf("the screen:\n%s", s.shown())
	}
}

// TestShortCut checks that a person does not notice that a link was down for a moment, and
// that what they typed meanwhile arrives once.
func TestShortCut(t *testing.T) {
	s, network := newShell(t, "")
	for range 10 {
		s.clear()
		network.Set(testkit.LinkRefused)
		down := time.Now()
		s.write("echo on''ce\r")
		network.Set(testkit.LinkOpen)
		s.until("shows no answer", func(shown string) bool {
			return strings.Contains(shown, "\nonce") || strings.Contains(shown, "no link")
		})
		if strings.Contains(s.shown(), "no link") && time.Since(down) > 2*time.Second {
			s.gone("link") // this machine is too slow for a short cut
			continue
		}
		s.until("shows something else", func(shown string) bool { return shown == "far$ echo on''ce\nonce\nfar$" })
		return
	}
	t.Error("every cut was a long one")
}

// TestLostSession checks that the client of a server that ends the session says so.
func TestLostSession(t *testing.T) {
	s, network := newShell(t, "")
	_, other := startServer(t)
	network.Set(testkit.LinkRefused)
	network.Lead(other)
	network.Set(testkit.LinkOpen)
	s.await("Error: the server has ended the session, and the command with it")
	s.isLocal()
}
