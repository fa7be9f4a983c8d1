package doors

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/protocol"
)

// TestHiddenPeers connects while a sandbox with a network is in use, from processes of the
// server's user that hide their descriptors, as sshd does. If a process may not leave the
// server's control group, the group of the socket shows that it comes from elsewhere. That is
// enough for a peer with a token: the command in the sandbox could have passed the socket on.
func TestHiddenPeers(t *testing.T) {
	testkit.System(t, testkit.Root)
	own, other := controlGroup(t, "own"), controlGroup(t, "other")
	in := func(group int, cmd *exec.Cmd) *exec.Cmd {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: group}
		return cmd
	}
	tokenFile, token := secret(t, ordinary)
	open := launch(t, ordinary, in(own, exec.Command(programs+"/exec-server", "--listen", "ws://127.0.0.1:0")))
	guarded := launch(t, ordinary, in(own, exec.Command(programs+"/exec-server", "--listen", "ws://127.0.0.1:0",
		"--ws-auth", "capability-token", "--ws-token-file", tokenFile)))
	session := connected(t, open)
	_, err := start(t, session, "in use", []string{"/bin/sleep", "60"}, networkSandbox(""))
	if err != nil && strings.Contains(err.Error(), "cannot be enforced") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	attacker := func(way string, d *daemon, token, file string) []string {
		return []string{programs + "/attacker", "attack", way, d.address, token, file}
	}
	file := filepath.Join(folder(t, ordinary), "file")
	for _, way := range []string{"plain", "hidden", "pass", "flight"} {
		if got := run(t, session, way, attacker(way, open, "", file), networkSandbox("")); !strings.HasPrefix(got, "403 ") {
			t.Errorf("confined, %s: got %q", way, got)
		}
	}
	for _, row := range []struct {
		what     string
		group    int
		server   *daemon
		token    string
		admitted bool
	}{
		{"in the server's group", own, open, "", false},
		{"in the server's group, with a token", own, guarded, token, false},
		{"in another group", other, open, "", false},
		{"in another group, with a token", other, guarded, token, true},
	} {
		file := filepath.Join(folder(t, ordinary), "file")
		argv := attacker("hidden", row.server, row.token, file)
		text, err := as(ordinary, in(row.group, exec.Command(argv[0], argv[1:]...))).CombinedOutput()
		got := strings.TrimSpace(string(text))
		if err != nil || (got == "101") != row.admitted || !row.admitted && !strings.HasPrefix(got, "403 "+unknownText) {
			t.Errorf("%s: got %q, %v; %s", row.what, got, err, row.server.log)
		}
		expectFile(t, file, row.admitted)
	}
	expectFile(t, file, false)
}

// TestPeersBesideContainers connects from a process that hides its descriptors, as sshd does,
// beside a container of the same user with a network of its own. The container may have
// received the connection from a command that has ended. A sandbox of the server without a network can
// get none.
func TestPeersBesideContainers(t *testing.T) {
	testkit.System(t, testkit.Root)
	uid := alone + 8
	tokenFile, token := secret(t, uid)
	open := serve(t, uid, "--listen", "ws://127.0.0.1:0")
	guarded := serve(t, uid, "--listen", "ws://127.0.0.1:0", "--ws-auth", "capability-token", "--ws-token-file", tokenFile)
	hidden := func(what string, d *daemon, token string, admitted bool) {
		t.Helper()
		file := filepath.Join(folder(t, uid), "file")
		got := attackAs(t, uid, "hidden", d.address, token, file)
		if (got == "101") != admitted {
			t.Errorf("%s: got %q; %s", what, got, d.log)
		}
		expectFile(t, file, admitted)
	}
	session := connected(t, open)
	policy := bytes.Replace(networkSandbox(""), []byte(`"network":"enabled"`), []byte(`"network":"restricted"`), 1)
	if _, err := start(t, session, "no network", []string{"/bin/sleep", "60"}, policy); err != nil && strings.Contains(err.Error(), "cannot be enforced") {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	hidden("beside a sandbox without a network", open, "", true)

	container := exec.Command("/bin/sleep", "60")
	container.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL,
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)},
	}
	if err := container.Start(); err != nil {
		t.Fatal(err)
	}
	ended := sync.OnceFunc(func() { _ = container.Process.Kill(); _ = container.Wait() })
	t.Cleanup(ended)
	hidden("beside a container", open, "", false)
	hidden("beside a container, with a token", guarded, token, true)
	ended()
	hidden("after it", open, "", true)

	// A command without a sandbox can start a container, too.
	contained := make(chan struct{})
	p := &testclient.Process{ID: "container", Take: func(string, []byte) { close(contained) }}
	if err := session.Start(t.Context(), p, protocol.StartParams{
		ProcessID: p.ID, Cwd: protocol.URIPath("/"), Env: map[string]string{"PATH": os.Getenv("PATH")},
		Argv: []string{"/usr/bin/unshare", "--user", "--net", "--pid", "--fork", "/bin/sh", "-c", "echo contained; exec sleep 60"},
	}); err != nil {
		t.Fatal(err)
	}
	<-contained
	hidden("beside a container of a command of the server", open, "", false)
}

// TestPeerThatEnds judges connections whose other end is gone by then: closed, or left with unix
// sockets that only the kernel still has. A process that hides its descriptors is there, whose
// the connection could be.
func TestPeerThatEnds(t *testing.T) {
	testkit.System(t, testkit.Root)
	connected(t, serve(t, alone+9, "--listen", "ws://127.0.0.1:0")) // with a process that hides its descriptors
	text, err := as(alone+9, exec.Command(programs+"/attacker", "judge")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for way := range strings.Lines(string(text)) {
		if what, why, _ := strings.Cut(way, ": "); !strings.Contains(why, "the process at its other end has ended") {
			t.Errorf("%s: the judge says %s", what, why)
		}
	}
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
