package workspace

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// program is the server and the tool, which every user can execute.
var program string

func TestMain(m *testing.M) {
	testkit.SystemMain()
	testkit.DefaultSignals()
	dir, err := makeProgram()
	if err != nil {
		_ = os.RemoveAll(dir)
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program = dir + "/exec-server"
	testkit.VerifyMainIn(dir, m)
}

func makeProgram() (dir string, err error) {
	if dir, err = os.MkdirTemp("/tmp", "workspace-"); err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return dir, err
	}
	return dir, testkit.BuildProgram(dir + "/exec-server")
}

// ordinary is a user that does not exist.
const ordinary = 61236

// machine is this machine as a user sees it. The environment box of its user is a server
// with workspaces.
type machine struct {
	t    *testing.T
	uid  int
	home string
}

// forUsers runs a test as root and as an ordinary user. Only root can be both.
func forUsers(t *testing.T, test func(*testing.T, *machine)) {
	users := map[string]int{"self": os.Geteuid()}
	if os.Geteuid() == 0 {
		users = map[string]int{"root": 0, "ordinary": ordinary}
	}
	for name, uid := range users {
		t.Run(name, func(t *testing.T) { test(t, newMachine(t, uid)) })
	}
}

// newMachine makes the home directory of a user. It is not in /tmp, which sandboxes may
// write.
func newMachine(t *testing.T, uid int) *machine {
	t.Helper()
	home, err := os.MkdirTemp("/var/tmp", "workspace-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	m := &machine{t, uid, home}
	m.own(home)
	return m
}

// own gives a file to the machine's user.
func (m *machine) own(path string) {
	m.t.Helper()
	if err := os.Chown(path, m.uid, -1); err != nil {
		m.t.Fatal(err)
	}
}

// dir makes a directory of the user below the home directory.
func (m *machine) dir(name string) string {
	m.t.Helper()
	path := m.home
	for part := range strings.SplitSeq(name, "/") {
		path = filepath.Join(path, part)
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			m.t.Fatal(err)
		}
		m.own(path)
	}
	return path
}

// write writes a file of the user.
func (m *machine) write(path, content string) {
	m.t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		m.t.Fatal(err)
	}
	m.own(path)
}

// wants checks the content of a file; "" means that there is none.
func (m *machine) wants(path, content string) {
	m.t.Helper()
	found, err := os.ReadFile(path)
	if err != nil && !(content == "" && errors.Is(err, os.ErrNotExist)) {
		m.t.Error(err)
	}
	if string(found) != content {
		m.t.Errorf("%s contains %q, not %q", path, found, content)
	}
}

// box configures the server of the environment box.
func (m *machine) box(flags ...string) {
	m.t.Helper()
	words := append([]string{"serve", "--listen", "stdio"}, flags...)
	m.configure(words)
}

func (m *machine) configure(words []string) {
	m.t.Helper()
	text := fmt.Sprintf("[[environments]]\nid = \"box\"\nprogram = %q\nargs = [\"%s\"]\n", program, strings.Join(words, `", "`))
	m.write(filepath.Join(m.dir(".codex"), "environments.toml"), text)
}

// result is how a run of the program ended.
type result struct {
	code           int
	stdout, stderr string
}

// as makes a command run as the user, in the home directory.
func (m *machine) as(cmd *exec.Cmd) *exec.Cmd {
	cmd.Dir = m.home
	if m.uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(m.uid), Gid: uint32(m.uid)}}
	}
	return cmd
}

// run runs the program as the user, in its home directory.
func (m *machine) run(args ...string) result {
	m.t.Helper()
	return m.feed("", args...)
}

func (m *machine) feed(input string, args ...string) result {
	m.t.Helper()
	cmd := m.as(exec.Command(program, args...))
	cmd.Env = []string{"HOME=" + m.home, "CODEX_HOME=" + m.home + "/.codex", "PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	err := cmd.Run()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		m.t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// must runs the program, which must succeed, and returns its output.
func (m *machine) must(args ...string) string {
	m.t.Helper()
	r := m.run(args...)
	if r.code != 0 {
		m.t.Fatalf("exec-server %s: exit code %d: %s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// fails runs the program, which must end with a code and say something.
func (m *machine) fails(code int, says string, args ...string) {
	m.t.Helper()
	if r := m.run(args...); r.code != code || !strings.Contains(r.stdout+r.stderr, says) {
		m.t.Errorf("exec-server %s: exit code %d, not %d with %q: %s%s", strings.Join(args, " "), r.code, code, says, r.stdout, r.stderr)
	}
}
