//go:build unix

package codex

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// TestPythonClient runs the demonstration of examples/python with this server and with the
// released one: a command, a terminal, and a connection that is cut.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "python3")
	ours, err := buildServer()
	if err != nil {
		t.Fatal(err)
	}
	released := client{version: newest}.program(t)
	for name, command := range map[string][]string{"ours": {ours}, "released": {released, "exec-server"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, append(command, "--listen", "ws://127.0.0.1:0"), t.TempDir(), append(os.Environ(), "CODEX_HOME="+t.TempDir()))
			t.Cleanup(func() { server.stop(syscall.SIGTERM) })
			url := server.announces(t, "server", &server.stdout, "ws://")
			out, err := exec.Command("python3", "../../examples/python/client.py", url).CombinedOutput()
			if err != nil || strings.Count(string(out), "ok ") != 5 {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
