package sandbox_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// user is who runs a server.
type user struct {
	name string
	uid  int // 0: as the test runs
}

// machine is a server of a user, with one means of confinement, and a workspace
// outside of /tmp, which is writable by default.
type machine struct {
	t              *testing.T
	base           string // holds all of the following
	ws, outside    string
	state, program string
	user           user
	means          string
	cmd            *exec.Cmd
	stdin          io.WriteCloser
	info           environment
	mu             sync.Mutex
	calls          int
	replies        map[int]chan reply
	processes      map[string]*running
	closed         chan struct{}
	stderr         bytes.Buffer
	bubblewrap     string
	descriptors    int // that the server has to begin with

	inside  *syscall.SysProcAttr // of the server's process; nil: its user alone
	through []string             // what the program does before it serves; nil: nothing
	env     []string             // of the server, besides the usual
	pid     int                  // of the server, where it runs
}

type environment struct {
	Sandbox struct{ Mode, Means, Reason string }
}

type reply struct {
	Result json.RawMessage
	Error  *failure
}

// failure is an error of the wire.
type failure struct {
	Code    int
	Message string
}

func (f *failure) Error() string { return fmt.Sprintf("%d %s", f.Code, f.Message) }

// running is a process, and then how it ended.
type running struct {
	output bytes.Buffer
	exit   struct {
		ExitCode      int
		Signal        string
		SandboxDenied bool
	}
	sandboxType string
	closed      chan struct{}
}

// noWait keeps programs with the race detector from waiting a second at their end.
const noWait = "GORACE=atexit_sleep_ms=0"

const timeout = time.Minute

// bubblewrapOf is the program to test the means of this name with.
func bubblewrapOf() string {
	if path := os.Getenv("EXEC_SERVER_TEST_BWRAP"); path != "" {
		return path
	}
	path, _ := exec.LookPath("bwrap")
	return path
}

func users() []user {
	if os.Geteuid() == 0 {
		return []user{{"root", 0}, {"ordinary", 61234}}
	}
	return []user{{"self", 0}}
}

// everyUser runs a test as every user, with what the test itself starts.
func everyUser(t *testing.T, test func(t *testing.T, m *machine)) {
	for _, u := range users() {
		t.Run(u.name, func(t *testing.T) {
			t.Parallel()
			test(t, prepareMachine(t, u, "userNamespace"))
		})
	}
}

// everywhere runs a test as every user and by every means of the machine.
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

// newMachine makes a workspace and starts a server; it skips the test where the
// machine does not have the means.
func newMachine(t *testing.T, u user, means string) *machine {
	t.Helper()
	m := prepareMachine(t, u, means)
	if means == "bubblewrap" && m.bubblewrap == "" {
		t.Skip("there is no bubblewrap; EXEC_SERVER_TEST_BWRAP names one")
	}
	m.start()
	if m.info.Sandbox.Means == "none" {
		if m.possible() {
			t.Fatal(m.info.Sandbox.Reason)
		}
		t.Skip(m.info.Sandbox.Reason)
	}
	return m
}

// possible reports whether the machine has the means, whatever the server says.
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

// inNamespaces has this program mount things in namespaces of its own.
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

// mounts does what every sandbox needs.
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

// as has a program run as the machine's user.
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
	self, err := os.ReadFile("/proc/self/exe")
	m.must(err)
	m.executable(m.program, self, 0o755)
	if m.bubblewrap != "" { // which may be where others cannot go
		if text, err := os.ReadFile(m.bubblewrap); err == nil {
			m.bubblewrap = filepath.Join(base, "bwrap")
			m.executable(m.bubblewrap, text, 0o755)
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
	m.replies, m.processes, m.closed = make(map[int]chan reply), make(map[string]*running), make(chan struct{})
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
	var err error
	m.stdin, err = m.cmd.StdinPipe()
	m.must(err)
	stdout, err := m.cmd.StdoutPipe()
	m.must(err)
	// What whoever starts it has forgotten to close.
	for range 3 {
		forgotten, err := os.Open("/")
		m.must(err)
		defer forgotten.Close()
		m.cmd.ExtraFiles = append(m.cmd.ExtraFiles, forgotten)
	}
	m.must(m.cmd.Start())
	m.pid = m.cmd.Process.Pid
	go m.read(stdout)
	m.t.Cleanup(m.stop)
	var hello struct{ EnvironmentInfo environment }
	m.must(m.call("initialize", map[string]any{"clientName": "test"}, &hello))
	m.info = hello.EnvironmentInfo
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.cmd.Process.Pid))
	m.must(err)
	m.descriptors = len(fds)
	m.send(map[string]any{"method": "initialized"})
}

// stop ends the server, which has let go by then of all that it has started.
func (m *machine) stop() {
	if !m.t.Failed() && m.cmd.ProcessState == nil {
		m.letsGo()
	}
	_ = m.stdin.Close()
	<-m.closed
	_ = m.cmd.Wait()
	if m.t.Failed() && m.stderr.Len() > 0 {
		m.t.Log(m.stderr.String())
	}
}

// letsGo checks that the server has no children any more, not even dead ones, and
// no descriptors but what it had at first.
func (m *machine) letsGo() {
	m.t.Helper()
	proc := fmt.Sprintf("/proc/%d/", m.cmd.Process.Pid)
	eventually(m.t, "the server keeps children or descriptors", func() bool {
		lists, err := filepath.Glob(proc + "task/*/children")
		m.must(err)
		for _, list := range lists {
			if text, err := os.ReadFile(list); err == nil && len(text) > 0 { // else the thread has ended
				return false
			}
		}
		fds, err := os.ReadDir(proc + "fd")
		m.must(err)
		return len(fds) <= m.descriptors
	})
}

// kill kills the server.
func (m *machine) kill() {
	_ = m.cmd.Process.Kill()
	<-m.closed
	_ = m.cmd.Wait() // and for its stderr, which is the next server's
}

func (m *machine) send(message map[string]any) {
	text, err := json.Marshal(message)
	m.must(err)
	m.mu.Lock()
	defer m.mu.Unlock()
	_, _ = m.stdin.Write(append(text, '\n')) // the reply would be missing
}

func (m *machine) read(r io.Reader) {
	defer close(m.closed)
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var message struct {
			ID     *int
			Method string
			Params struct {
				ProcessID     string
				Chunk         []byte
				ExitCode      int
				Signal        string
				SandboxDenied bool
			}
			reply
		}
		if json.Unmarshal(line, &message) != nil {
			continue
		}
		m.mu.Lock()
		p := m.processes[message.Params.ProcessID]
		switch {
		case message.ID != nil && m.replies[*message.ID] != nil:
			m.replies[*message.ID] <- message.reply
		case p == nil:
		case message.Method == "process/output":
			p.output.Write(message.Params.Chunk)
		case message.Method == "process/exited":
			p.exit.ExitCode, p.exit.Signal, p.exit.SandboxDenied = message.Params.ExitCode, message.Params.Signal, message.Params.SandboxDenied
		case message.Method == "process/closed":
			close(p.closed)
		}
		m.mu.Unlock()
	}
}

// call calls a method; the error is a *failure.
func (m *machine) call(method string, params, result any) error {
	m.t.Helper()
	answer := make(chan reply, 1)
	m.mu.Lock()
	m.calls++
	id := m.calls
	m.replies[id] = answer
	m.mu.Unlock()
	m.send(map[string]any{"id": id, "method": method, "params": params})
	select {
	case r := <-answer:
		if r.Error != nil {
			return r.Error
		}
		if result != nil {
			return json.Unmarshal(r.Result, result)
		}
		return nil
	case <-m.closed:
		m.t.Fatalf("%s: the server has ended: %s", method, m.stderr.String())
	case <-time.After(timeout):
		m.t.Fatalf("%s: no answer", method)
	}
	return nil
}

// command is what a process is started with.
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
	p := &running{closed: make(chan struct{})}
	m.mu.Lock()
	id := fmt.Sprintf("p%d", len(m.processes))
	m.processes[id] = p
	m.mu.Unlock()
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
	case <-p.closed:
	case <-m.closed:
		m.t.Fatalf("the server has ended: %s", m.stderr.String())
	case <-time.After(timeout):
		m.t.Fatalf("the process does not close; it wrote %q", m.written(p))
	}
}

func (m *machine) written(p *running) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.ReplaceAll(p.output.String(), "\r\n", "\n")
}

// awaitOutput waits until a process has written something.
func (m *machine) awaitOutput(p *running, text string) {
	m.t.Helper()
	for deadline := time.Now().Add(timeout); !strings.Contains(m.written(p), text); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("%q is missing in %q", text, m.written(p))
		}
	}
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
