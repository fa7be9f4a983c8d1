//go:build unix

package codex

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/testkit/responses"
)

// The certificates of docs/security.md, made by the commands that stand there, are
// what a released client wants.
func TestOwnAuthority(t *testing.T) {
	play(t, []scenario{{
		name:     "own authority",
		only:     func(c client) bool { return c.version != oldest && !c.stdio },
		onlyOurs: true,
		doors:    []string{"--tls-cert", "server.pem", "--tls-key", "server.key", "--ws-auth", "capability-token", "--ws-token-file", "token"},
		secure:   true,
		model:    responses.Script(responses.Say(shell("hello", "echo hello"))),
		check:    wants("hello", 0, "hello\n"),
	}})
}

// makeCertificates runs the first commands about an own authority in docs/security.md
// in the run's work folder, for this machine.
func (r *run) makeCertificates(t testing.TB) {
	t.Helper()
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "<!-- the commands below are run by a test -->")
	_, rest, opened := strings.Cut(rest, "```sh\n")
	commands, _, closed := strings.Cut(rest, "```")
	if !found || !opened || !closed {
		t.Fatal("docs/security.md has no commands to run")
	}
	commands = strings.Replace(commands, "NAME=box.example.com IP=192.0.2.7", "NAME=localhost IP=127.0.0.1", 1)
	command := exec.Command("sh", "-ec", commands)
	command.Dir = r.work
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", commands, err, out)
	}
}

// writeTokens writes a tokens file in which the run's token has a sandbox: everything may
// be read, the work folder be written, and there is no network.
func (r *run) writeTokens(t testing.TB) {
	t.Helper()
	digest := sha256.Sum256([]byte(r.token(t)))
	r.write(t, "work/tokens.toml", fmt.Sprintf("[[token]]\nname = \"client\"\nsha256 = \"%x\"\nscope = [\"full\"]\n"+
		"[token.sandbox]\nread = [\"/\"]\nwrite = [%q]\n", digest, r.work))
	if err := os.Chmod(filepath.Join(r.work, "tokens.toml"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// token is the run's token.
func (r *run) token(t testing.TB) string {
	t.Helper()
	token, err := os.ReadFile(filepath.Join(r.work, "token"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(token))
}

// secureEnvironment is what environments.toml says of a server with the run's
// certificates and token.
func (r *run) secureEnvironment(t testing.TB, url string) string {
	t.Helper()
	url = strings.Replace(url, "127.0.0.1", "localhost", 1)
	return fmt.Sprintf("url = %q\nauth_bearer_token = %q\n", url, r.token(t))
}
