package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/cli"
)

// TestRunInSandbox checks that the flags about sandboxes let a command write where they
// say, and nowhere else, with a server and on this machine, and that a sandbox that cannot be
// enforced is an error.
func TestRunInSandbox(t *testing.T) {
	p := newServer(t, "--listen", "ws://127.0.0.1:0")
	refused := newServer(t, "--listen", "ws://127.0.0.1:0", "--sandbox", "off")
	root, err := os.MkdirTemp("/var/tmp", "run-sandbox-") // the sandbox may write to /tmp
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	for _, name := range []string{"work", "other"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := `for d in work other; do touch ` + root + `/$d/file 2>/dev/null && echo $d; done; rm -f ` + root + `/*/file; ls / >/dev/null && echo read`
	for _, test := range []struct {
		flags []string
		want  string
	}{
		{nil, "work other read"},
		{[]string{"--sandbox", "read-only"}, "read"},
		{[]string{"--sandbox", "workspace-write"}, "work read"},
		{[]string{"--sandbox", "read-only", "--allow-write", root + "/other"}, "other read"},
		{[]string{"--sandbox", "workspace-write", "--allow-write", root + "/other", "--network"}, "work other read"},
	} {
		for _, machine := range [][]string{{"--url", p.url}, {"--on", "local"}} {
			args := append(append([]string{"run", "-w", root + "/work"}, machine...), test.flags...)
			out, err := exec.Command("exec-server", append(args, "--", "sh", "-c", script)...).CombinedOutput()
			if strings.Contains(string(out), "cannot be enforced") {
				t.Skipf("there are no sandboxes here: %s", out)
			}
			if got := strings.Join(strings.Fields(string(out)), " "); err != nil || got != test.want {
				t.Errorf("%v %v: %v, %q, want %q", machine, test.flags, err, got, test.want)
			}
		}
	}
	if err := os.Symlink("other", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	warning := "Warning: " + root + "/link leads through a link to " + root + "/other, where the command may write\n"
	for _, test := range []struct{ mode, dir, want string }{
		{"workspace-write", root + "/link", warning},
		{"workspace-write", root + "/link/", "Warning: " + root + "/link/ leads through"},
		{"workspace-write", root + "/work", ""},
		{"workspace-write", root + "/work/../work/", ""},
		{"read-only", root + "/link", ""},
	} {
		out, err := exec.Command("exec-server", "run", "--url", p.url, "-w", test.dir, "--sandbox", test.mode, "--", "true").CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), test.want) || test.want == "" && len(out) > 0 {
			t.Errorf("-w %s --sandbox %s: %v, %q, want %q", test.dir, test.mode, err, out, test.want)
		}
	}
	out, err := exec.Command("exec-server", "run", "--url", refused.url, "--sandbox", "read-only", "--", "echo", "bare").CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != cli.ExitNotAllowed || strings.Contains(string(out), "bare\n") {
		t.Errorf("a sandbox that is off: %v, %s", err, out)
	}
}
