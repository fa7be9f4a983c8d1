//go:build unix

package terminal

import (
	"strings"
	"testing"
)

// TestTop watches two commands in top, sorts them, ends one of them and attaches to the
// other one. Top must leave the terminal as it was.
func TestTop(t *testing.T) {
	t.Parallel()
	_, address := startServer(t)
	s := newScreen(t)
	url := " --url ws://" + address
	s.line("exec-server run -d" + url + " --name quiet -- sh -c 'echo wat''ched; sleep 1000' >/dev/null 2>&1")
	s.isLocal()
	s.line("exec-server run -d" + url + " --name busy -- sh -c 'while :; do :; done' >/dev/null 2>&1")
	s.isLocal()
	s.line("echo before t''op")
	s.await("before top")

	s.line("exec-server top --interval 500ms" + url)
	s.await("q leave")
	s.until("busy does not come first by its use of the processor", func(shown string) bool {
		lines := strings.Split(shown, "\n")
		return len(lines) > 3 && strings.HasPrefix(lines[2], "busy") && strings.HasPrefix(lines[3], "quiet") && strings.Contains(lines[0], "by cpu")
	})
	s.press("s")
	s.await("by memory")
	s.press("s", "s")
	s.await("by session")
	s.until("quiet does not come first", func(shown string) bool {
		lines := strings.Split(shown, "\n")
		return len(lines) > 3 && strings.HasPrefix(lines[2], "quiet")
	})
	s.press("Up", "Down", "k") // busy
	s.await("end busy/")
	s.press("n")
	s.await("q leave")
	s.press("k")
	s.await("end busy/")
	s.press("y")
	s.until("busy still runs", func(shown string) bool { return !strings.Contains(shown, "while :") })
	s.press("q")
	s.prompt("local$")
	s.shows("before top")
	s.isLocal()

	s.line("exec-server top" + url)
	s.await("q leave")
	s.press("w")
	s.await("\nwatched")
	s.press("C-c")
	s.press("Enter") // the terminal shows ^C before the prompt
	s.isLocal()
	s.line("exec-server top" + url + " | tail -n 1")
	s.await("sleep 1000")
	s.isLocal()
}
