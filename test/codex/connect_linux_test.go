package codex

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
)

// connectBySSH leads to a server that connect starts through an sshd on loopback. Nothing
// is there at first but sh. Clients that can only dial get a port of connect's.
func connectBySSH(t testing.TB, r *run, program string) func(url string) []string {
	dir := filepath.Join(r.root, "sshd")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	sshd := testkit.StartSSHD(t, dir)
	return func(url string) []string {
		words := []string{program, "connect", "--ephemeral", "--remote-dir", filepath.Join(r.root, "far")}
		if url != "stdio" {
			words = append(words, "--listen", url)
		}
		return slices.Concat(words, []string{"ssh"}, sshd.Flags(sshd.Port()), []string{"127.0.0.1"})
	}
}

// TestConnect has clients work through connect, by program and by a port.
func TestConnect(t *testing.T) {
	play(t, []scenario{
		{
			name:     "connect",
			onlyOurs: true,
			connect:  connectBySSH,
			model: responses.Script(
				responses.Say(shell("place", `echo "by ${SSH_CONNECTION:+ssh} in ${PWD##*/}"`)),
				responses.Say(shell("exit", "echo bye >&2; exit 3")),
				responses.Say(shellWith("ask", `test -t 0 && printf 'name? ' && read name && echo "hello $name"`,
					object{"tty": true, "yield_time_ms": 1000})),
				typeInto("ask", "answer", "Ada\n", 10000),
				responses.Say(shell("much", "seq 1 100000 | tail -n 1; seq 1 20000")),
			),
			check: func(t *testing.T, r *run) {
				r.want(t, "place", 0, "by ssh in work\n")
				r.want(t, "exit", 3, "bye\n")
				r.wantTyped(t, "ask", "answer")
				if got := r.result(t, "much"); got.exit != 0 || !strings.Contains(got.output, "100000\n1\n2\n") {
					t.Errorf("exit %d, output %s", got.exit, abbreviate(got.output))
				}
				if found, _ := filepath.Glob(filepath.Join(r.root, "far", "*", "exec-server")); len(found) != 1 {
					t.Errorf("the other machine has the programs %q", found)
				}
			},
		},
	})
}
