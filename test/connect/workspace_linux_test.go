package connect

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
)

// TestWorkspace pushes a directory to an account, shows it there under its path here, and
// pulls what has changed.
func TestWorkspace(t *testing.T) {
	b := newBox(t)
	t.Run("mounted", func(t *testing.T) { // over the directory, which is here and there
		probe := b.sshd.As("plain").Command(b.sshd.Port(), "unshare", "--user", "--mount", "true")
		if out, err := probe.CombinedOutput(); err != nil {
			t.Skipf("this user can mount nothing here: %v: %s", err, out)
		}
		b.work(t, "plain", project(t))
	})
	t.Run("linked", func(t *testing.T) { // there is no unprivileged namespace in another root
		dir := project(t)
		uid := b.accounts["bare"].uid
		parent := filepath.Join(filepath.Dir(b.accounts["bare"].home), filepath.Dir(dir))
		must(t, os.MkdirAll(parent, 0o755))
		must(t, os.Chown(parent, uid, uid))
		b.work(t, "bare", dir)
	})
	t.Run("refused", func(t *testing.T) {
		dir := project(t)
		fails(t, b.connect(t, "bare", "--workspace", dir+"=~/other"), 1, dir)
	})
}

// project makes a directory that every user can reach.
func project(t *testing.T) string {
	t.Helper()
	parent := t.TempDir()
	must(t, os.Chmod(filepath.Dir(parent), 0o755))
	dir := filepath.Join(parent, "project")
	must(t, os.Mkdir(dir, 0o755))
	return dir
}

// work has an account work in a directory of this machine.
func (b *box) work(t *testing.T, name, dir string) {
	t.Helper()
	there := filepath.Join(b.accounts[name].home, "project")
	must(t, os.WriteFile(filepath.Join(dir, "greeting"), []byte("hello\n"), 0o644))
	connect := b.connect(t, name, "--push", "--workspace", dir+"=~/project")
	var said bytes.Buffer
	connect.Stderr = &said
	env, err := client.Launch(t.Context(), connect, &client.Options{InitializeTimeout: testkit.Patience})
	if err != nil {
		t.Fatalf("connect: %v\n%s", err, said.Bytes())
	}
	command := env.Command(t.Context(), "/bin/sh", "-c", `pwd; read -r line <greeting; echo "$line"; echo changed >greeting`)
	command.Dir = dir
	out, err := command.Output()
	if err != nil || string(out) != dir+"\nhello\n" {
		t.Errorf("the command printed %q: %v", out, err)
	}
	must(t, env.Close())
	wants(t, filepath.Join(there, "greeting"), "changed\n")
	wants(t, filepath.Join(dir, "greeting"), "hello\n")

	pull := local(t, "pull", "--on", "box", dir)

	entry := "[[environments]]\nid = \"box\"\nprogram = \"" + program + "\"\nargs = [\"" + strings.Join(connect.Args[1:], `", "`) + "\"]\n"
	must(t, os.Mkdir(filepath.Join(pull.Dir, ".codex"), 0o700))
	must(t, os.WriteFile(filepath.Join(pull.Dir, ".codex", "environments.toml"), []byte(entry), 0o600))
	// The record of what was pushed is in connect's home.
	pull.Env = append(pull.Env, "CODEX_HOME="+filepath.Join(pull.Dir, ".codex"), "HOME="+connect.Dir)
	if out, err := pull.CombinedOutput(); err != nil {
		t.Errorf("pull: %v: %s", err, out)
	}
	wants(t, filepath.Join(dir, "greeting"), "changed\n")
	b.vanished(t, name)
}

func wants(t *testing.T, path, content string) {
	t.Helper()
	if text, err := os.ReadFile(path); err != nil || string(text) != content {
		t.Errorf("%s has %q, want %q: %v", path, text, content, err)
	}
}
