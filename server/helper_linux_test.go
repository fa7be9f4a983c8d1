package server_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// TestHelpersRefuseStrangers starts this program with the arguments of each helper and
// a socket as standard input, but without what a server hands over. It serves nobody,
// opens nothing and makes nothing.
func TestHelpersRefuseStrangers(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "root"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"files":          {"@sandbox-files", "false"},
		"open":           {"@sandbox-open", secret, "read", "0"},
		"launcher":       {"@sandbox-launcher"},
		"probe":          {"@sandbox-probe", dir, "pid:[1]"},
		"Landlock probe": {"@sandbox-probe-landlock", dir},
	} {
		// Descriptors of another kind do not help, whatever is in them.
		for _, more := range []string{"", "\x00\x00\x01", "{}"} {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			var said bytes.Buffer
			cmd := exec.Command(self, args...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, &said
			if more != "" {
				file, err := os.CreateTemp(t.TempDir(), "")
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				if _, err := file.WriteString(more); err != nil {
					t.Fatal(err)
				}
				cmd.ExtraFiles = []*os.File{file, file}
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			_ = theirs.Close()
			_, _ = io.WriteString(ours, `{"id":0,"method":"initialize","params":{"clientName":"x"}}`+"\n"+
				`{"method":"initialized"}`+"\n"+`{"id":1,"method":"fs/readFile","params":{"path":"`+secret+`"}}`+"\n")
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case err = <-ended:
			case <-time.After(testkit.Patience):
				_ = cmd.Process.Kill()
				t.Fatalf("%s: it serves a stranger", name)
			}
			answer, _ := io.ReadAll(ours)
			_ = ours.Close()
			if cmd.ProcessState.ExitCode() != 125 || !strings.Contains(said.String(), "may call "+args[0]) || len(answer) > 0 {
				t.Errorf("%s: %v, it said %q and answered %q", name, err, said.String(), answer)
			}
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*", "*")); len(left) > 0 {
		t.Errorf("files were made: %q", left)
	}
	if _, err := os.Lstat(filepath.Join(dir, "outside")); err == nil {
		t.Error("a file was made")
	}
}

// TestSandboxNeedsRunHelper has a program that does not call RunHelper ask for a
// sandbox. It is refused, and the program is not started anew: it would do whatever it
// does otherwise.
func TestSandboxNeedsRunHelper(t *testing.T) {
	if os.Getenv(noHelperVariable) == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self, "-test.run=^TestSandboxNeedsRunHelper$", "-test.v")
		cmd.Env = append(os.Environ(), noHelperVariable+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Count(string(out), "RUN") != 1 {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	p := connectFiles(t, newConfiningServer(t))
	err := p.try("fs/getMetadata", fileParams{"path": "/", "sandbox": hiding(t.TempDir())}, nil)
	if err == nil || !strings.Contains(err.Error(), "does not call server.RunHelper at the top of its main function") {
		t.Errorf("got %v", err)
	}
}
