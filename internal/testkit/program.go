package testkit

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// WriteProgram makes an executable file. The kernel refuses to execute a file while a
// process has it open for writing. A child forked during the write would have it open
// until the child executes its own program, so WriteProgram prevents forks meanwhile.
func WriteProgram(t testing.TB, path string, content []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

// CopyProgram copies this program to a path where other users can execute it.
func CopyProgram(t testing.TB, path string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	WriteProgram(t, path, content)
}

// BuildProgram builds exec-server for tests that run all of it.
func BuildProgram(path string) error {
	build := exec.Command("go", "build", "-o", path, "execserver/cmd/exec-server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build exec-server: %w\n%s", err, text)
	}
	return nil
}

// StartPiped starts a command with pipes for standard input and standard output. The
// caller must wait for the command.
func StartPiped(t testing.TB, cmd *exec.Cmd) (stdin io.WriteCloser, stdout io.ReadCloser) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err = cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return stdin, stdout
}
