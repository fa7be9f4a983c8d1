package testkit

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Serve starts a built exec-server, which ends with the test, and returns its URL.
func Serve(t testing.TB, program, listen string) (url string) {
	t.Helper()
	command := exec.Command(program, "serve", "--listen", listen)
	command.Stderr = os.Stderr
	return ServeCommand(t, command)
}

// ServeCommand starts a server that tells its URL on stdout and ends with the test.
func ServeCommand(t testing.TB, command *exec.Cmd) (url string) {
	t.Helper()
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}
