//go:build unix

package terminal

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/testkit"
)

// programs is a directory with exec-server.
var programs string

func TestMain(m *testing.M) {
	testkit.SystemMain("tmux")
	testkit.DefaultSignals()
	var err error
	if programs, err = makePrograms(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testkit.VerifyMainIn(programs, m)
}

func makePrograms() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "terminal-"); err != nil {
		return "", err
	}
	return dir, testkit.BuildProgram(filepath.Join(dir, "exec-server"))
}

// startServer starts a server, which the end of the test kills, and returns its address.
func startServer(t *testing.T, args ...string) (server *exec.Cmd, address string) {
	t.Helper()
	server = exec.Command(filepath.Join(programs, "exec-server"),
		append([]string{"serve", "--without=supervisor", "--log-level=error", "--listen", "ws://127.0.0.1:0"}, args...)...)
	server.Dir = t.TempDir()
	stdout, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(server) })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the server does not say where it listens: %v", err)
	}
	return server, strings.TrimPrefix(strings.TrimSpace(line), "ws://")
}

func stop(server *exec.Cmd) {
	_ = server.Process.Kill()
	_ = server.Wait()
}
