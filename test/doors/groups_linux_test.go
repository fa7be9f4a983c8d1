package doors

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// TestHiddenPeers connects while a sandbox with a network is in use, from processes of the
// server's user that hide their descriptors, as sshd does. If a process may not leave the
// server's control group, the group of the socket shows that it comes from elsewhere.
func TestHiddenPeers(t *testing.T) {
	testkit.System(t, testkit.Root)
	own, other := controlGroup(t, "own"), controlGroup(t, "other")
	in := func(group int, cmd *exec.Cmd) *exec.Cmd {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: group}
		return cmd
	}
	d := launch(t, ordinary, in(own, exec.Command(programs+"/exec-server", "--listen", "ws://127.0.0.1:0")))
	session := open(t, d)
	_, err := start(t, session, "in use", []string{"/bin/sleep", "60"}, networkSandbox(""))
	if err != nil && strings.Contains(err.Error(), "cannot be enforced") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder(t, ordinary), "file")
	attacker := func(way string) []string {
		return []string{programs + "/attacker", "attack", way, d.address, "", file}
	}
	for _, way := range []string{"plain", "hidden", "pass", "flight"} {
		if got := run(t, session, way, attacker(way), networkSandbox("")); !strings.HasPrefix(got, "403 ") {
			t.Errorf("confined, %s: got %q", way, got)
		}
	}
	hidden := func(group int) string {
		argv := attacker("hidden")
		text, err := as(ordinary, in(group, exec.Command(argv[0], argv[1:]...))).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return strings.TrimSpace(string(text))
	}
	if got := hidden(own); !strings.HasPrefix(got, "403 "+unknownText) {
		t.Errorf("in the server's group: got %q", got)
	}
	expectFile(t, file, false)
	if got := hidden(other); got != "101" {
		t.Errorf("in another group: got %q; %s", got, d.log)
	}
	expectFile(t, file, true)
}

// controlGroup makes a control group and returns its descriptor.
func controlGroup(t *testing.T, name string) int {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if err := unix.Statfs(root, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		dir := filepath.Join(root, fmt.Sprint("doors-", os.Getpid(), "-", name))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() {
			testkit.WaitFor(t, testkit.Patience, func() error { return os.Remove(dir) })
		})
		fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	t.Skip("there are no control groups of version 2")
	return 0
}
