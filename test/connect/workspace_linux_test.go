package connect

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
)

// TestWorkspace shows a directory of an account under the path of one of this machine.
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
	connect := b.connect(t, name, "--workspace", dir+"=~/project")
	var said bytes.Buffer
	connect.Stderr = &said
	env, err := client.Launch(t.Context(), connect, &client.Options{InitializeTimeout: testkit.Patience})
	if err != nil {
		t.Fatalf("connect: %v\n%s", err, said.Bytes())
	}
	command := env.Command(t.Context(), "/bin/sh", "-c", `pwd; echo hello >greeting`)
	command.Dir = dir
	out, err := command.Output()
	if err != nil || string(out) != dir+"\n" {
		t.Errorf("the command printed %q: %v", out, err)
	}
	must(t, env.Close())
	if text, err := os.ReadFile(filepath.Join(there, "greeting")); err != nil || string(text) != "hello\n" {
		t.Errorf("in the account's directory there is %q: %v", text, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("the directory here has %v, %v", entries, err)
	}
	b.vanished(t, name)
}
