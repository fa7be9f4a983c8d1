package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// TestSystemDoctorOfRights has a server whose user may not write, or not even be, where it was
// started.
func TestSystemDoctorOfRights(t *testing.T) {
	testkit.System(t, testkit.Root)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		mode       os.FileMode
		want       string
		text, mend string
	}{
		{0o755, warning, "but not write there", "as another user"},
		{0o700, problem, "its user may not be there", "in a permanent directory"},
	} {
		dir, err := os.MkdirTemp("/tmp", "doctor")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(testkit.SocketDir(t), "exec-server")
		copyProgram(t, self, program)
		command := exec.Command(program, "--listen", "ws://127.0.0.1:0", "--sandbox=off", "--insecure-no-auth", "--allow-confined-peers", "--without=supervisor")
		command.Args[0] = "exec-server"
		command.Dir = dir
		command.Env = append(os.Environ(), "HOME=/", "XDG_STATE_HOME="+filepath.Dir(program))
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 61234, Gid: 61234}}
		p, err := launch(command, true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.kill)
		if err := os.Chmod(dir, test.mode); err != nil {
			t.Fatal(err)
		}
		diagnose(t, nil, "--url", p.url).expect(t, "directory", test.want, test.text, test.mend)
	}
}

// TestDoctorOfAFullDisk has a server in a small file system.
func TestDoctorOfAFullDisk(t *testing.T) {
	dir := t.TempDir()
	command := exec.Command("unshare", "--map-root-user", "--mount", "sh", "-c",
		`mount -t tmpfs -o size=1m none "$1" && cd "$1" && echo mounted >&2 && exec exec-server --listen ws://127.0.0.1:0 --sandbox=off --insecure-no-auth --allow-confined-peers`, "sh", dir)
	if out, err := exec.Command("unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", dir).CombinedOutput(); err != nil {
		t.Skipf("nothing can be mounted here: %v: %s", err, out)
	}
	p, err := launch(command, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	diagnose(t, nil, "--url", p.url).expect(t, "disk", problem, "only 1 MiB are free", "make room on "+dir)
}

// copyProgram copies a program to where every user can execute it.
func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
}
