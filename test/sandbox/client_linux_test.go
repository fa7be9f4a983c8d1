package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/internal/testkit/transcript"
	"execserver/protocol"
)

// user is the user that runs a server.
type user struct {
	name string
	uid  int // 0: as the test runs
}

// machine is a server with one means of confinement, and its workspace. The workspace is
// not in /tmp, because policies make /tmp writable by default.
type machine struct {
	t              *testing.T
	base           string // holds all of the following
	ws, outside    string
	state, program string
	user           user
	means          string
	cmd            *exec.Cmd
	conn           *testclient.Conn
	processes      testclient.Processes
	begun          atomic.Int64 // processes, which is where their ids come from
	stderr         testkit.Buffer
	bubblewrap     string
	descriptors    int // that the server has to begin with

	inside  *syscall.SysProcAttr // of the server's process; nil: its user alone
	through []string             // what the program does before it serves; nil: nothing
	env     []string             // of the server, besides the usual
	pid     int                  // of the server, where it runs
}

// running is a process; exit is set once it has closed.
type running struct {
	*testclient.Told
	exit        protocol.ExitRecord
	sandboxType string
}

// noWait keeps programs with the race detector from waiting for a second before they
// exit.
const noWait = "GORACE=atexit_sleep_ms=0"

// bubblewrapOf returns the path of the bubblewrap to test with, or "" if there is none.
func bubblewrapOf() string {
	path, _ := exec.LookPath("bwrap")
	return path
}

func users() []user {
	if os.Geteuid() == 0 {
		return []user{{"root", 0}, {"ordinary", 61234}}
	}
	return []user{{"self", 0}}
}

// everyUser runs a test as every user. The test starts the server itself.
func everyUser(t *testing.T, test func(t *testing.T, m *machine)) {
	for _, u := range users() {
		t.Run(u.name, func(t *testing.T) {
			t.Parallel()
			test(t, prepareMachine(t, u, "userNamespace"))
		})
	}
}

// everywhere runs a test as every user with every means that the machine has.
func everywhere(t *testing.T, test func(t *testing.T, m *machine)) {
	for _, u := range users() {
		for _, means := range []string{"userNamespace", "namespaces", "bubblewrap"} {
			t.Run(u.name+"/"+means, func(t *testing.T) {
				t.Parallel()
				test(t, newMachine(t, u, means))
			})
		}
	}
}

// newMachine makes a workspace and starts a server. It skips the test if the machine does
// not have the means.
func newMachine(t *testing.T, u user, means string) *machine {
	t.Helper()
	m := prepareMachine(t, u, means)
	if means == "bubblewrap" && m.bubblewrap == "" {
		testkit.Need(t, "bwrap")
	}
	m.start()
	if m.conn.Info.Sandbox.Means == "none" {
		if m.possible() {
			t.Fatal(m.conn.Info.Sandbox.Reason)
		}
		t.Skip(m.conn.Info.Sandbox.Reason)
	}
	return m
}

// possible finds out without the server whether the machine has the means.
func (m *machine) possible() bool {
	cmd := exec.Command(m.program, "namespaces", m.means)
	switch m.means {
	case "landlock":
		return false // nobody else can tell
	case "bubblewrap":
		cmd = exec.Command(m.bubblewrap, "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "/bin/true")
	}
	m.as(cmd)
	return cmd.Run() == nil
}

// inNamespaces runs mounts in new namespaces.
func inNamespaces(means string) error {
	cmd := exec.Command("/proc/self/exe", "mounts")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET}
	if means == "userNamespace" {
		own := func(id int) []syscall.SysProcIDMap {
			return []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
		}
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = own(os.Geteuid()), own(os.Getegid())
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	return cmd.Run()
}

// mounts makes the mounts that every sandbox needs.
func mounts() error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return err
	}
	return unix.Mount("tmpfs", "/proc", "tmpfs", 0, "")
}

// as makes a command run as the machine's user.
func (m *machine) as(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if m.user.uid != 0 {
		id := uint32(m.user.uid)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: id, Gid: id}
	}
}

func prepareMachine(t *testing.T, u user, means string) *machine {
	t.Helper()
	base, err := os.MkdirTemp("/var/tmp", "exec-server-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	m := &machine{
		t: t, base: base, user: u, means: means, bubblewrap: bubblewrapOf(),
		ws: filepath.Join(base, "ws"), outside: filepath.Join(base, "outside"),
		state: filepath.Join(base, "state"), program: filepath.Join(base, "program"),
	}
	testkit.CopyProgram(t, m.program)
	if m.bubblewrap != "" { // which may be where others cannot go
		if text, err := os.ReadFile(m.bubblewrap); err == nil {
			m.bubblewrap = filepath.Join(base, "bwrap")
			m.executable(m.bubblewrap, text)
		}
	}
	for _, dir := range []string{"ws/.git/hooks", "ws/dir", "outside/dir", "state"} {
		m.must(os.MkdirAll(filepath.Join(base, dir), 0o755))
	}
	for _, file := range []string{"ws/.git/config", "ws/file", "outside/file", "outside/dir/file"} {
		m.must(os.WriteFile(filepath.Join(base, file), []byte("old"), 0o644))
	}
	m.own(base)
	return m
}

// own gives everything below a path to the machine's user.
func (m *machine) own(path string) {
	if m.user.uid != 0 {
		m.must(filepath.WalkDir(path, func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, m.user.uid, m.user.uid))
		}))
	}
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// start starts the server.
func (m *machine) start() {
	m.t.Helper()
	serve := []string{m.program, "serve", m.means, m.bubblewrap, m.state}
	if m.through != nil {
		serve = slices.Concat([]string{m.program}, m.through, serve)
	}
	m.cmd = exec.Command(serve[0], serve[1:]...)
	m.cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + m.base, noWait}
	m.cmd.Env = append(m.cmd.Env, m.env...)
	m.cmd.Dir, m.cmd.Stderr = m.base, &m.stderr
	m.as(m.cmd)
	if m.inside != nil {
		m.cmd.SysProcAttr = m.inside
	}
	// What whoever starts it has forgotten to close.
	for range 3 {
		forgotten, err := os.Open("/")
		m.must(err)
		defer forgotten.Close()
		m.cmd.ExtraFiles = append(m.cmd.ExtraFiles, forgotten)
	}
	stdin, stdout := testkit.StartPiped(m.t, m.cmd)
	m.pid = m.cmd.Process.Pid
	m.conn = testclient.New(transcript.NewLines(stdout, stdin, stdin.Close, stdout.Close), m.processes.Notify)
	m.t.Cleanup(m.stop)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	m.must(m.conn.Handshake(ctx, protocol.InitializeParams{ClientName: "test"}))
	m.descriptors = testkit.DescriptorsOf(m.t, m.cmd.Process.Pid)
}

// stop ends the server. It fails the test if the server still has children.
func (m *machine) stop() {
	if !m.t.Failed() && m.cmd.ProcessState == nil {
		m.letsGo()
	}
	m.conn.Close()
	_ = m.cmd.Wait()
	if text := m.stderr.String(); m.t.Failed() && text != "" {
		m.t.Log(text)
	}
}

// letsGo checks that the server has no children left, not even zombies, and no more
// descriptors than at the start.
func (m *machine) letsGo() {
	m.t.Helper()
	pid := m.cmd.Process.Pid
	eventually(m.t, "the server keeps children or descriptors", func() bool {
		return len(testkit.Children(pid)) == 0 && testkit.DescriptorsOf(m.t, pid) <= m.descriptors
	})
}

// kill kills the server.
func (m *machine) kill() {
	_ = m.cmd.Process.Kill()
	<-m.conn.Done()
	_ = m.cmd.Wait() // and for its stderr, which is the next server's
}

// call calls a method; the error is a *protocol.Error.
func (m *machine) call(method string, params, result any) error {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	err := m.conn.Call(ctx, method, params, result)
	if _, refused := errors.AsType[*protocol.Error](err); err != nil && !refused {
		m.t.Fatalf("%s: %v; the server says %s", method, err, m.stderr.String())
	}
	return err
}

// command describes a process to start.
type command struct {
	argv    []string
	sandbox any
	tty     bool
	env     map[string]string
	dir     string
	null    bool // standard input is /dev/null
}

// begin starts a process.
func (m *machine) begin(c command) (*running, string, error) {
	m.t.Helper()
	id := fmt.Sprint("p", m.begun.Add(1))
	p := &running{Told: m.processes.Of(id)}
	env := map[string]string{"PATH": "/usr/bin:/bin", "TMPDIR": ""}
	name, value, _ := strings.Cut(noWait, "=")
	env[name] = value
	for name, value := range c.env {
		env[name] = value
	}
	if c.dir == "" {
		c.dir = m.ws
	}
	var started struct{ SandboxType string }
	err := m.call("process/start", map[string]any{
		"processId": id, "argv": c.argv, "cwd": uri(c.dir), "env": env, "tty": c.tty, "sandbox": c.sandbox, "pipeStdin": !c.tty && !c.null,
	}, &started)
	p.sandboxType = started.SandboxType
	return p, id, err
}

func (m *machine) await(p *running) {
	m.t.Helper()
	select {
	case <-p.Closed:
		p.exit = <-p.Exited
	case <-m.conn.Done():
		m.t.Fatalf("the server has ended: %s", m.stderr.String())
	case <-time.After(testkit.Patience):
		m.t.Fatalf("the process does not close; it wrote %q", m.written(p))
	}
}

func (m *machine) written(p *running) string {
	return strings.ReplaceAll(p.Output.String(), "\r\n", "\n")
}

// awaitOutput waits until the output of a process contains text.
func (m *machine) awaitOutput(p *running, text string) {
	m.t.Helper()
	testkit.WaitFor(m.t, testkit.Patience, func() error {
		if got := m.written(p); !strings.Contains(got, text) {
			return fmt.Errorf("%q is missing in %q", text, got)
		}
		return nil
	})
}

// run runs a process to its end.
func (m *machine) run(c command) *running {
	m.t.Helper()
	p, _, err := m.begin(c)
	if err != nil {
		m.t.Fatalf("%q: %v", c.argv, err)
	}
	m.await(p)
	return p
}

// shell runs a script in the workspace-write sandbox and returns its output.
func (m *machine) shell(script string) string {
	m.t.Helper()
	p := m.run(command{argv: []string{"/bin/sh", "-c", script}, sandbox: m.workspaceWrite()})
	return m.written(p)
}

func uri(path string) string { return "file://" + path }
