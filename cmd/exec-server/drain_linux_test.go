package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// drain runs drain with --pid, and returns its exit code and what it prints.
func drain(pid int) (code int, text string) {
	command := exec.Command("exec-server", "drain", "--pid", fmt.Sprint(pid), "--timeout", "9s")
	out, _ := command.CombinedOutput()
	return command.ProcessState.ExitCode(), string(out)
}

// TestDrainSparesOtherPrograms checks that drain sends no signal to what is no server,
// because it would be killed.
func TestDrainSparesOtherPrograms(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	client := []string{"exec-server", "run", "--url", s.url, "--", "cat"}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	if code, text := drain(gone.Process.Pid); code != 1 || !strings.Contains(text, ": there is no such process\n") {
		t.Errorf("no process: exit code %d: %s", code, text)
	}
	for want, line := range map[string][]string{
		"which is not an exec-server": {"/bin/cat"}, "but not a server: exec-server run ": client,
	} {
		command := exec.Command(line[0], line[1:]...)
		stdin, err := command.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		// It runs for certain when it answers.
		answer := make([]byte, 3)
		if _, err := fmt.Fprintln(stdin, "hi"); err != nil {
			t.Error(err)
		}
		if _, err := stdout.Read(answer); err != nil {
			t.Error(err)
		}
		if code, text := drain(command.Process.Pid); code != 1 || !strings.Contains(text, want) {
			t.Errorf("%s: exit code %d: %s", line, code, text)
		}
		_ = stdin.Close()
		if err := command.Wait(); err != nil {
			t.Errorf("%s did not end in order: %v", line, err)
		}
	}
}

// TestDrainReplacedServer checks that drain recognizes a server, or its supervisor, whose file an
// upgrade has removed.
func TestDrainReplacedServer(t *testing.T) {
	t.Parallel()
	self, err := exec.LookPath("exec-server")
	if err != nil {
		t.Fatal(err)
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		t.Fatal(err)
	}
	for supervisor, flags := range withAndWithoutSupervisor {
		// The test binary is the program under the name exec-server alone.
		other := t.TempDir() + "/exec-server"
		if err := os.Link(self, other); err != nil { // a copy could be open for writing in a child of another test
			t.Skipf("the file of the program cannot have another name: %v", err)
		}
		p, err := launch(exec.Command(other, append([]string{"serve"}, flags...)...), true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.kill)
		if err := os.Remove(other); err != nil {
			t.Fatal(err)
		}
		if code, text := drain(p.command.Process.Pid); code != 0 || !strings.HasSuffix(text, "the server has ended\n") {
			t.Errorf("%s: exit code %d: %s", supervisor, code, text)
		}
		p.exits(t, 0)
	}
}

// TestResumeWhileDraining checks that a client whose link breaks comes back to a server
// that drains, and that another one does not come in.
func TestResumeWhileDraining(t *testing.T) {
	t.Parallel()
	s := newServer(t, "--listen", "unix://"+socketPath(t))
	c := connect(t, s)
	session := c.handshake("")
	c.start(shellSpec("1", "sleep 1000"))
	if err := s.signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	logged(t, s, "draining")
	c.Cut()
	second := connect(t, s)
	testkit.WaitFor(t, testkit.Patience, func() error { // the server may not know yet that the link is cut
		if err := second.try("initialize", object{"clientName": "test", "resumeSessionId": session}, nil); err != nil {
			return err
		}
		return nil
	})
	refusal := connect(t, s).try("initialize", object{"clientName": "test"}, nil)
	if want := "the server is draining: it takes no new sessions, and ends with its last one"; refusal == nil || refusal.Message != want {
		t.Errorf("a new session gets %v, want %q", refusal, want)
	}
	if out, err := exec.Command("exec-server", "sessions", "--url", s.url, "--end", session).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	s.exits(t, 0)
}
