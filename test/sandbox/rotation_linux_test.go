package sandbox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReplacedSecrets replaces secrets while a command runs, as editors, Kubernetes and
// programs that remove a file first do. No command can read the new secrets, not even one
// that starts meanwhile.
func TestReplacedSecrets(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		path := func(name string) string { return filepath.Join(m.base, name) }
		for _, dir := range []string{"own", "kube/..one", "ws/deep"} {
			m.mkdir(path(dir))
		}
		secret := func(name string) { m.write(path(name), "secret") }
		for _, name := range []string{"own/token", "own/certificate", "own/token~", "kube/..one/token", "ws/deep/key"} {
			secret(name)
		}
		for name, target := range map[string]string{"kube/..data": "..one", "kube/token": "..data/token", "token-link": "own/token"} {
			m.must(os.Symlink(target, path(name)))
		}
		read := "cd " + m.base + "; cat own/token own/token.new kube/token kube/..two/token kube/..data/token ws/deep/key token-link; ls own kube ws/deep; true"
		attempt := func(when string) {
			for name, sandbox := range map[string]object{"read": m.policy("restricted", special("root", "read")), "workspace": m.workspaceWrite()} {
				p := m.run(command{argv: []string{"/bin/sh", "-c", read + " 2>&1"}, sandbox: sandbox})
				if got := m.written(p); strings.Contains(got, "secret") || strings.Contains(got, "token\n") {
					t.Errorf("%s, a command with the policy %s has got %q", when, name, got)
				}
			}
		}
		attempt("at first")
		var waiting []*running
		for _, sandbox := range []object{m.policy("restricted", special("root", "read")), m.workspaceWrite()} {
			script := "echo ready; while ! test -e " + path("go") + "; do sleep 0.02; done; " + read + " 2>&1"
			p, _, err := m.begin(command{argv: []string{"/bin/sh", "-c", script}, sandbox: sandbox})
			m.must(err)
			m.awaitOutput(p, "ready")
			waiting = append(waiting, p)
		}
		secret("own/token.new")
		m.mkdir(path("kube/..two"))
		secret("kube/..two/token")
		m.must(os.Remove(path("ws/deep/key")))
		attempt("while the secrets are being replaced")
		m.must(os.Rename(path("own/token.new"), path("own/token")))
		m.must(os.Symlink("..two", path("kube/..new")))
		m.must(os.Rename(path("kube/..new"), path("kube/..data")))
		m.must(os.RemoveAll(path("kube/..one")))
		secret("ws/deep/key")
		m.write(path("go"), "")
		for _, p := range waiting {
			if m.await(p); strings.Contains(m.written(p), "secret") {
				t.Errorf("a command that has run all the time has got %q", m.written(p))
			}
		}
		attempt("afterwards")
		m.says(nil, [2]string{"cat " + path("token-link") + " " + path("kube/token"), "secretsecret"})
	})
}

// TestSharedDirectoryOfSecrets puts secrets into directories that commands need. The
// server hides the secrets and nothing else.
func TestSharedDirectoryOfSecrets(t *testing.T) {
	everyUser(t, func(t *testing.T, m *machine) {
		path := func(name string) string { return filepath.Join(m.base, name) }
		for _, dir := range []string{"own", "ws/deep"} {
			m.mkdir(path(dir))
		}
		for _, name := range []string{"token", "own/token", "ws/deep/key"} {
			m.write(path(name), "secret")
		}
		m.start()
		const denied = "Permission denied"
		m.says(m.workspaceWrite(), [2]string{"ls " + path("own"), denied}, [2]string{"ls deep", denied}, [2]string{"ls " + m.base, "own"})
		// A command begins there.
		p := m.run(command{argv: []string{"/bin/sh", "-c", "LC_ALL=C cat token 2>&1; ls"}, dir: path("own"), sandbox: m.workspaceWrite()})
		m.contains("in the directory of a secret", m.written(p), denied+"\ntoken\n")
		// The policy names the directory, or something in it.
		m.write(path("own/other"), "text")
		for _, policy := range []object{m.workspaceWrite(at(path("own"), "read")), m.workspaceWrite(at(path("own/other"), "write"))} {
			m.says(policy, [2]string{"cat " + path("own/other"), "text"}, [2]string{"cat " + path("own/token"), denied})
		}
		m.says(m.workspaceWrite(at(path("own/token"), "read")), [2]string{"ls " + path("own"), denied})
		m.stop()
		log := m.stderr.String()
		for name, want := range map[string]int{"token": 1, "own/token": 0, "ws/deep/key": 0, "token-link": 0} {
			if got := strings.Count(log, "directory of its own"+", because a sandboxed command that already runs can read a replacement\" file="+path(name)+"\n"); got != want {
				t.Errorf("the log tells of %s %d times, want %d: %s", name, got, want, log)
			}
		}
	})
}
