//go:build unix

package terminal

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestReplay shows a recording, which a person stops, continues and skips. At its end the
// last picture stays, and the terminal is as it was.
func TestReplay(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.cast")
	if err := os.WriteFile(path, []byte(`{"version":3,"term":{"cols":40,"rows":5}}
[0, "o", "\u001b[?1049h\u001b[?1000h\u001b[2J\u001b[H\u001b[5nfirst\u001b]0;evil\u0007"]
[5, "o", "\r\nsecond"]
[10000, "o", "\r\nthird"]
[3, "x", "7"]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newScreen(t)
	s.line("echo be''fore; exec-server replay --speed 5 " + path)
	s.await("second")
	s.await("q leave")
	s.press("Space")
	s.await("stopped")
	s.press("Space")
	s.await("5x")
	s.press("+")
	s.await("10x")
	for range 10 {
		s.press("-")
	}
	s.press("q")
	s.prompt("local$")
	s.shows("before")
	s.isLocal()

	s.clear()
	s.line("exec-server replay --speed 100 --max-pause 5s " + path)
	s.await("exited with 7 after 2h")
	s.shows("third")
	s.isLocal()

	// The keys come from the terminal, also when the recording is standard input. An arrow
	// leads on in the middle of a pause.
	s.clear()
	s.line("cd " + filepath.Dir(path))
	s.clear()
	s.line("cat test.cast | exec-server replay --max-pause 1h --speed 0.05 -")
	s.await("first")
	s.press("Right")
	s.await("second")
	for range 8 {
		s.press("+") // to 12.8 times the speed, at which the pause of an hour takes minutes
	}
	s.press("Space")
	s.await("stopped")
	s.press("q")
	s.prompt("local$")
	s.isLocal()
}

// TestReplaySkipsPause presses the arrow until a pause of half an hour is over.
func TestReplaySkipsPause(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.cast")
	if err := os.WriteFile(path, []byte(`{"version":3,"term":{"cols":40,"rows":5}}
[0, "o", "before"]
[1800, "o", "\r\nafter"]
[0, "x", "7"]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newScreen(t)
	s.line("exec-server replay " + path)
	s.await("before")
	// All at once: on a slow machine the pause could otherwise be over before the last one.
	s.press(slices.Repeat([]string{"Right"}, 1800/10)...)
	s.await("exited with 7 after 30m")
	s.shows("after")
	s.isLocal()
}
