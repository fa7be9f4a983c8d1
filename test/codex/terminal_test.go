//go:build unix

package codex

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
)

// TestTerminalProgram types into the terminal program of Codex, which runs in tmux. Its /stop
// must leave nothing of a command that runs in the background, not even a daemon of it.
// "codex exec", which the other tests use, has no such command.
func TestTerminalProgram(t *testing.T) {
	if os.Getenv("EXEC_SERVER_TEST_CODEX") != "1" {
		t.Skip("needs installed Codex clients: set EXEC_SERVER_TEST_CODEX=1, or run make test-codex")
	}
	testkit.Need(t, "tmux")
	for _, c := range clients {
		if c.version != newest || c.stdio {
			continue
		}
		t.Run("stop/"+c.String(), func(t *testing.T) {
			t.Parallel()
			if command, ours := serverCommand(t, c); c.gateway && !ours {
				t.Skipf("%s joins no gateway", command[0])
			}
			stopInBackground(t, c)
		})
	}
}

func stopInBackground(t *testing.T, c client) {
	r := newRun(t, c, scenario{
		// The program also asks for such things as a title, and offers no tools then.
		model: func(req *responses.Request) []responses.Item {
			if _, done := req.Output("tree"); done || len(req.Tools) == 0 {
				return []responses.Item{responses.Message("the tree is up")}
			}
			return []responses.Item{shellWith("tree", `"$HELPER" tree up daemon`, object{"yield_time_ms": 1000})}
		},
	})
	screen := r.startScreen(t)
	screen.await(t, "permissions:")
	screen.press(t, "Do as you are told.")
	screen.await(t, "› Do as you are told.")
	screen.press(t, "Enter")
	r.await(t, "up")
	screen.await(t, "1 background terminal running")
	if running := r.commands(t); len(running) < 2 {
		t.Errorf("the server has started %v, want the command and its child", running)
	}
	screen.press(t, "/stop")
	screen.await(t, "› /stop")
	screen.press(t, "Enter")
	waitFor(t, testkit.Patience, func() error { return noneOf(r.commands(t)) })
}

// A screen is a terminal of tmux in which the client runs.
type screen struct{ tmux testkit.Tmux }

// startScreen starts the client's terminal program, which ends with the test.
func (r *run) startScreen(t testing.TB) *screen {
	t.Helper()
	s := &screen{testkit.Tmux(filepath.Join(r.root, "tmux"))}
	t.Cleanup(func() { _, _ = s.tmux.Run("kill-server") })
	cmd := s.tmux.Command("-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40",
		r.client.program(t), "--dangerously-bypass-approvals-and-sandbox", "-C", r.work,
		";", "set-option", "remain-on-exit", "on") // to see the last words of a client that ends
	cmd.Env = append(r.env(), "TERM=xterm-256color", "CODEX_EXEC_SERVER_URL="+r.server.url)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tmux: %v\n%s", err, out)
	}
	return s
}

// press types a text, or presses a key that tmux has a name for.
func (s *screen) press(t testing.TB, key string) {
	t.Helper()
	if _, err := s.tmux.Run("send-keys", key); err != nil {
		t.Fatal(err)
	}
}

// await waits until the screen shows a text.
func (s *screen) await(t testing.TB, text string) {
	t.Helper()
	waitFor(t, testkit.Patience, func() error {
		shown, err := s.tmux.Run("capture-pane", "-p")
		if err == nil && !strings.Contains(shown, text) {
			err = fmt.Errorf("the screen does not show %q:\n%s", text, shown)
		}
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
}
