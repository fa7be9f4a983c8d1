package page

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
)

// TestWatchCodex watches a command of an unmodified Codex, whose model is a script: the
// page shows it while it runs, and how it ended.
func TestWatchCodex(t *testing.T) {
	t.Parallel()
	program := testkit.Codex(t)
	s := serve(t)
	home := t.TempDir()
	command := "for i in 1 2 3; do echo step $i; sleep 1; done; while ! [ -e go ]; do sleep 0.1; done; echo finished; sleep 2; exit 7"
	model := responses.Start(responses.Script(
		responses.Say(responses.Call("one", "exec_command", map[string]any{"cmd": command, "yield_time_ms": 30000, "tty": true})),
		responses.Say(responses.Message("done")),
	))
	defer model.Close()
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(model.CodexConfig()), 0o600); err != nil {
		t.Fatal(err)
	}
	codex := exec.Command(program, "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-C", s.dir, "Do as you are told.")
	codex.Env = append(os.Environ(), "CODEX_HOME="+home, "CODEX_EXEC_SERVER_URL="+s.url)
	b := browse(t)
	b.signIn(s)
	if err := codex.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- codex.Wait() }()
	t.Cleanup(func() { _ = codex.Process.Kill() })

	b.shows(".list", "step $i")
	b.shows(".list h2", "codex")
	b.click(".process", "step $i")
	b.awaits("step $i", "step 3\n")
	b.picture("15-codex")
	if err := os.WriteFile(filepath.Join(s.dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	b.awaits("step $i", "finished")
	b.shows(".pane .state", "exit status 7")
	b.clean()
	if err := <-ended; err != nil {
		t.Errorf("Codex, which was watched: %v", err)
	}
	if out, ok := model.Output("one"); !ok || out.Text() == "" {
		t.Error("the model has not got the output")
	}
}
