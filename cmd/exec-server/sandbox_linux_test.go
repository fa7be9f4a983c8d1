package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// inSandbox returns a command of exec-server sandbox in a directory of its own. It skips
// the test if nothing can confine the command here.
func inSandbox(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	if text, err := exec.Command("exec-server", "sandbox", "--read", "/", "--", "true").CombinedOutput(); err != nil {
		if bytes.Contains(text, []byte("cannot be enforced")) {
			t.Skipf("%s", text)
		}
		t.Fatalf("%v: %s", err, text)
	}
	command := exec.Command("exec-server", append([]string{"sandbox"}, args...)...)
	command.Dir = t.TempDir()
	return command
}

func TestSandbox(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("secret\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(filepath.Dir(outside), "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, test := range []struct {
		name   string
		flags  []string
		script string
		code   int
		stdout string
		stderr string // a part of it
	}{
		{"exit code", []string{"--read", "."}, "echo out; exit 7", 7, "out\n", ""},
		{"signal", []string{"--read", "."}, "kill -9 $$", 137, "", ""},
		{"inside", []string{"--write", "."}, "echo text >file && cat file", 0, "text\n", ""},
		{"outside", []string{"--read", "/", "--write", "."}, "echo text >>" + outside, 2, "", "Read-only file system"},
		{"not to be read", []string{"--write", "."}, "cat " + outside, 1, "", "No such file"},
		{"denied", []string{"--read", "/", "--deny", outside}, "cat " + outside, 1, "", "Permission denied"},
		{"protected", []string{"--read", "/", "--write", "."}, "mkdir .git/x", 1, "", "Read-only file system"},
		{"socket", []string{"--read", "/"}, "test -S " + socket, 1, "", ""},
		{"socket that is allowed", []string{"--read", "/", "--socket", socket}, "test -S " + socket, 0, "", ""},
		{"no network", []string{"--read", "/", "--no-network"}, "grep -c : /proc/net/dev", 0, "1\n", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			command := inSandbox(t, append(test.flags, "--", "sh", "-c", test.script)...)
			command.Env = append(os.Environ(), "LC_ALL=C")
			var stdout, stderr bytes.Buffer
			command.Stdout, command.Stderr = &stdout, &stderr
			_ = command.Run()
			if code := command.ProcessState.ExitCode(); code != test.code || stdout.String() != test.stdout || !strings.Contains(stderr.String(), test.stderr) {
				t.Errorf("exit code %d, %q, %q", code, &stdout, &stderr)
			}
			if left, _ := os.ReadDir(command.Dir); len(left) > 1 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "secret\n" {
		t.Errorf("outside is %q, %v", text, err)
	}
}

func TestSandboxRefuses(t *testing.T) {
	for _, test := range []struct {
		args []string
		code int
		text string
	}{
		{nil, 2, "there is no command to run; put it after --"},
		{[]string{"--read", "/", "--", "no-such-program"}, 127, "no-such-program"},
		{[]string{"--read", "/", "--", "/etc/passwd"}, 126, "permission denied"},
		{[]string{"--", "true"}, 125, "the working directory cannot be reached in the sandbox; add --read . or --write ."},
		{[]string{"--write", "no-such-directory", "--", "true"}, 125, "no-such-directory"},
	} {
		command := inSandbox(t, test.args...)
		text, _ := command.CombinedOutput()
		if code := command.ProcessState.ExitCode(); code != test.code || !strings.Contains(string(text), test.text) {
			t.Errorf("%q: exit code %d, %s", test.args, code, text)
		}
	}
}

// TestSandboxSignals checks that a signal to the program reaches the command, and that
// nothing of the command is left when the program is killed.
func TestSandboxSignals(t *testing.T) {
	word := newWord()
	script := "trap 'echo got; exit 6' TERM; echo ready; while :; do sleep 0.01; done # " + word
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		command := inSandbox(t, "--read", "/", "--", "sh", "-c", script)
		var stderr testkit.Buffer
		command.Stderr = &stderr
		stdout, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
		_ = command.Process.Signal(sig)
		rest, _ := io.ReadAll(stdout)
		err = command.Wait()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if sig == syscall.SIGTERM && (!ok || exit.ExitCode() != 6 || string(rest) != "got\n") {
			t.Errorf("%v: %v, %q, %s", sig, err, rest, stderr.String())
		}
		testkit.WaitFor(t, testkit.Patience, func() error {
			if alive := testkit.WithWord(t, word); len(alive) > 0 {
				return fmt.Errorf("alive: %s", alive)
			}
			return nil
		})
	}
}

// TestSandboxOnTerminal checks that a shell in a sandbox has the terminal: keys send
// signals to its foreground job, and jobs can be stopped and continued.
func TestSandboxOnTerminal(t *testing.T) {
	inSandbox(t, "--read", "/")
	m := newTerminal(t, "--on", "local", "--", "exec-server", "sandbox", "--read", "/", "--", "sh", "-im")
	m.write("PS1=rea''dy:\n")
	m.expect("ready:")
	m.write("sh -c 'echo be''gun; exec sleep 3600'\n")
	m.expect("begun\r\n")
	m.write("\x03")
	m.expect("ready:")
	m.write("sh -c 'echo be''gun; exec sleep 3601'\n")
	m.expect("begun\r\n")
	m.write("\x1a")
	m.expect("Stopped")
	m.expect("ready:")
	m.write("fg\n")
	m.expect("3601")
	m.write("\x03")
	m.expect("ready:")
	_ = m.command.Terminate(context.Background(), 0)
}
