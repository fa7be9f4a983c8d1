//go:build linux

package codex

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/testkit/responses"
)

// knowsSandbox picks the clients that leave the sandbox to the server.
func knowsSandbox(c client) bool { return c.version != oldest }

// denied checks that a command was kept from something, and that the model was
// told what.
func denied(t *testing.T, r *run, id string) {
	t.Helper()
	if got := r.result(t, id); got.exit == 0 || !strings.Contains(got.output, "Read-only file system") {
		t.Errorf("call %s: exit %d; the model was told: %s", id, got.exit, abbreviate(got.text))
	}
}

// holds checks the content of a file of the run's; empty: there must be none.
func holds(t *testing.T, r *run, name, want string) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(r.root, name))
	if string(got) != want || want == "" && err == nil {
		t.Errorf("%s holds %q, %v; want %q", name, got, err, want)
	}
}

func addFile(path string) string {
	return "*** Begin Patch\n*** Add File: " + path + "\n+patched\n*** End Patch\n"
}

// refused checks that a patch was not applied, and that the model was told.
func refused(t *testing.T, r *run, id string) {
	t.Helper()
	if got := r.result(t, id).text; strings.Contains(got, "Success") {
		t.Errorf("call %s: the model was told: %s", id, abbreviate(got))
	}
}

// unreached listens on a port of this machine, which it returns, until the test has ended,
// and checks that nobody has connected by then.
func unreached(t *testing.T) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer l.Close()
		last, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer last.Close()
		first, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer first.Close()
		if first.RemoteAddr().String() != last.LocalAddr().String() {
			t.Error("a sandboxed command has reached a port of the machine")
		}
	})
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

func TestSandbox(t *testing.T) {
	port := unreached(t)
	prepare := func(t *testing.T, r *run) {
		for _, dir := range []string{"outside", "work/.git"} {
			if err := os.MkdirAll(filepath.Join(r.root, dir), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	try := responses.Script(
		responses.Say(shell("inside", "echo made > inside.txt && cat inside.txt")),
		responses.Say(shell("outside", "echo made > ../outside/file.txt")),
		responses.Say(shell("git", "echo made > .git/config")),
		responses.Say(shell("network", "exec 3<>/dev/tcp/127.0.0.1/"+port)),
		responses.Say(responses.CustomCall("patch", "apply_patch", addFile("patched.txt"))),
		responses.Say(responses.CustomCall("patch outside", "apply_patch", addFile("../outside/patched.txt"))),
	)
	play(t, []scenario{
		{
			name: "workspace-write", only: knowsSandbox, onlyOurs: true, prepare: prepare, model: try,
			sandbox: func(*run) []string { return []string{"--sandbox", "workspace-write"} },
			check: func(t *testing.T, r *run) {
				r.want(t, "inside", 0, "made\n")
				denied(t, r, "outside")
				denied(t, r, "git")
				if got := r.result(t, "network"); got.exit == 0 {
					t.Errorf("the network: %s", abbreviate(got.text))
				}
				holds(t, r, "work/inside.txt", "made\n")
				holds(t, r, "work/patched.txt", "patched\n")
				refused(t, r, "patch outside")
				holds(t, r, "outside/file.txt", "")
				holds(t, r, "outside/patched.txt", "")
				holds(t, r, "work/.git/config", "")
			},
		},
		{
			name: "read-only", only: knowsSandbox, onlyOurs: true, prepare: prepare,
			model: responses.Script(
				responses.Say(shell("look", "echo seen")),
				responses.Say(shell("inside", "echo made > inside.txt")),
				responses.Say(responses.CustomCall("patch", "apply_patch", addFile("patched.txt"))),
			),
			sandbox: func(*run) []string { return []string{"--sandbox", "read-only"} },
			check: func(t *testing.T, r *run) {
				r.want(t, "look", 0, "seen\n")
				denied(t, r, "inside")
				refused(t, r, "patch")
				holds(t, r, "work/inside.txt", "")
				holds(t, r, "work/patched.txt", "")
			},
		},
		{
			name: "more roots", only: knowsSandbox, onlyOurs: true, prepare: prepare,
			model: responses.Script(
				responses.Say(shell("outside", "echo made > ../outside/file.txt && echo done")),
				responses.Say(shell("beyond", "echo made > ../beyond.txt")),
				responses.Say(responses.CustomCall("patch outside", "apply_patch", addFile("../outside/patched.txt"))),
			),
			sandbox: func(r *run) []string {
				return []string{
					"--sandbox", "workspace-write",
					"-c", `sandbox_workspace_write.writable_roots=["` + filepath.Join(r.root, "outside") + `"]`,
				}
			},
			check: func(t *testing.T, r *run) {
				r.want(t, "outside", 0, "done\n")
				denied(t, r, "beyond")
				holds(t, r, "outside/file.txt", "made\n")
				holds(t, r, "outside/patched.txt", "patched\n")
				holds(t, r, "beyond.txt", "")
			},
		},
		{
			name: "within that of a token", only: func(c client) bool { return knowsSandbox(c) && !c.stdio }, onlyOurs: true, prepare: prepare, model: try,
			doors:  []string{"--tls-cert", "server.pem", "--tls-key", "server.key", "--tokens", "tokens.toml"},
			secure: true,
			sandbox: func(r *run) []string {
				return []string{
					"--sandbox", "workspace-write",
					"-c", `sandbox_workspace_write.writable_roots=["` + filepath.Join(r.root, "outside") + `"]`,
					"-c", "sandbox_workspace_write.network_access=true",
				}
			},
			check: func(t *testing.T, r *run) {
				r.want(t, "inside", 0, "made\n")
				denied(t, r, "outside")
				denied(t, r, "git")
				if got := r.result(t, "network"); got.exit == 0 {
					t.Errorf("the network: %s", abbreviate(got.text))
				}
				holds(t, r, "work/patched.txt", "patched\n")
				refused(t, r, "patch outside")
				holds(t, r, "outside/file.txt", "")
				holds(t, r, "outside/patched.txt", "")
			},
		},
	})
}
