package connect

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// program is the exec-server that the tests start.
var program string

func TestMain(m *testing.M) {
	testkit.SystemMain()
	testkit.IsolateMounts()
	testkit.DefaultSignals()
	dir, err := os.MkdirTemp("", "connect-")
	if err == nil {
		program = filepath.Join(dir, "exec-server")
		err = buildProgram(program)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	if code == 0 {
		if err := testkit.Leaks(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func buildProgram(path string) error {
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=1.2.3-test", "-o", path, "execserver/cmd/exec-server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the program: %w: %s", err, text)
	}
	return nil
}

// site is where the accounts are. A file system in memory hides what is there otherwise.
const site = "/mnt"

// account is a user of the machine to which the tests connect.
type account struct {
	name, shell string
	home        string // as the tests see it
	uid         int
}

// box is a machine with accounts: this one, as seen through an sshd.
type box struct {
	sshd     *testkit.SSHD
	accounts map[string]account
}

// newBox makes the accounts. Their files are gone with the test.
func newBox(t *testing.T) *box {
	t.Helper()
	testkit.System(t, testkit.Root)
	mount(t, "tmpfs", site, "tmpfs", 0, "mode=755")
	b := &box{accounts: make(map[string]account)}
	passwd := "root:x:0:0:root:/root:/bin/sh\n"
	if _, err := os.Stat("/etc/passwd"); err == nil { // sshd needs its own user
		text, err := os.ReadFile("/etc/passwd")
		if err != nil {
			t.Fatal(err)
		}
		passwd = string(text)
	}
	for i, a := range []account{
		{name: "plain", shell: "/bin/sh"},
		{name: "bare", shell: "/bin/sh"},
		{name: "poor", shell: "/bin/sh"},
		{name: "csh", shell: "/usr/bin/tcsh"},
		{name: "fish", shell: "/usr/bin/fish"},
		{name: "noisy", shell: "/bin/bash"},
		{name: "other", shell: "/bin/bash"},
		{name: "reader", shell: "/bin/bash"},
		{name: "silent", shell: "/bin/bash"},
		{name: "small", shell: "/bin/sh"},
		{name: "noexec", shell: "/bin/sh"},
		{name: "liar", shell: "/bin/sh"},
		{name: "long", shell: "/bin/sh"},
	} {
		a.uid = 61700 + i
		a.home = filepath.Join(site, a.name)
		if err := os.Mkdir(a.home, 0o755); err != nil {
			t.Fatal(err)
		}
		home := a.home
		switch a.name {
		case "long": // than the path of a socket may be
			a.home = filepath.Join(a.home, strings.Repeat("long/", 20)+"home")
			must(t, os.MkdirAll(a.home, 0o755))
			home = a.home
		case "bare":
			a.home = filepath.Join(a.home, "home")
			home = "/home"
			makeRoot(t, filepath.Dir(a.home))
		case "small":
			mount(t, "tmpfs", a.home, "tmpfs", 0, "size=1m")
		case "noexec":
			mount(t, "tmpfs", a.home, "tmpfs", unix.MS_NOEXEC, "")
		}
		must(t, os.Chown(a.home, a.uid, a.uid))
		must(t, os.Chmod(a.home, 0o700))
		passwd += fmt.Sprintf("%s:*:%d:%d::%s:%s\n", a.name, a.uid, a.uid, home, a.shell)
		b.accounts[a.name] = a
	}
	for name, startup := range map[string]string{
		"other": "exec dash\n", "reader": "read -r line\n", "silent": "exec cat >/dev/null\n",
	} {
		must(t, os.WriteFile(filepath.Join(site, name, ".bashrc"), []byte(startup), 0o644))
	}
	noise := "printf 'Welcome!\\n%.0s' 1 2 3; printf 'you have mail: '\n"
	must(t, os.WriteFile(filepath.Join(site, "noisy", ".bashrc"), []byte(noise), 0o644))
	must(t, os.Mkdir(filepath.Join(site, "lies"), 0o755))
	must(t, os.WriteFile(filepath.Join(site, "lies", "uname"), []byte("#!/bin/sh\necho Linux aarch64\n"), 0o755))
	must(t, os.Mkdir(filepath.Join(site, "tools"), 0o755))
	for _, name := range []string{"sh", "uname"} {
		path, err := exec.LookPath(name)
		must(t, err)
		must(t, os.Symlink(path, filepath.Join(site, "tools", name)))
	}
	must(t, os.WriteFile(filepath.Join(site, "passwd"), []byte(passwd), 0o644))
	mount(t, filepath.Join(site, "passwd"), "/etc/passwd", "", unix.MS_BIND, "")

	keys := filepath.Join(site, "keys") // which the accounts can read
	must(t, os.Mkdir(keys, 0o755))
	b.sshd = testkit.StartSSHD(t, keys,
		"Match User bare", "ChrootDirectory "+filepath.Join(site, "bare"),
		"Match User poor", "SetEnv PATH="+filepath.Join(site, "tools"),
		"Match User liar", "SetEnv PATH="+filepath.Join(site, "lies")+":/usr/bin:/bin")
	return b
}

// makeRoot makes the root of an account that has nothing but a busybox.
func makeRoot(t *testing.T, root string) {
	t.Helper()
	testkit.Need(t, "busybox")
	busybox, err := exec.LookPath("busybox")
	must(t, err)
	for _, dir := range []string{"bin", "dev", "proc", "home"} {
		must(t, os.Mkdir(filepath.Join(root, dir), 0o755))
	}
	copyInto(t, busybox, filepath.Join(root, "bin", "busybox"))
	libraries, _ := exec.Command("ldd", busybox).Output() // fails if it needs none
	for word := range strings.FieldsSeq(string(libraries)) {
		if filepath.IsAbs(word) {
			copyInto(t, word, filepath.Join(root, word))
		}
	}
	for _, name := range []string{"sh", "chmod", "find", "gunzip", "head", "ls", "mkdir", "mv", "rm", "rmdir", "sha256sum", "uname", "wc"} {
		must(t, os.Symlink("busybox", filepath.Join(root, "bin", name)))
	}
	null := filepath.Join(root, "dev", "null")
	must(t, os.WriteFile(null, nil, 0o666))
	mount(t, "/dev/null", null, "", unix.MS_BIND, "")
	mount(t, "proc", filepath.Join(root, "proc"), "proc", 0, "")
}

func copyInto(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	must(t, err)
	must(t, os.MkdirAll(filepath.Dir(to), 0o755))
	must(t, os.WriteFile(to, content, 0o755))
}

func mount(t *testing.T, source, dir, kind string, flags uintptr, options string) {
	t.Helper()
	if err := unix.Mount(source, dir, kind, flags, options); err != nil {
		t.Skipf("cannot mount %s on %s: %v", source, dir, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connect returns a command that connects to an account, with flags of connect. Its server ends with
// the connection.
func (b *box) connect(t *testing.T, name string, flags ...string) *exec.Cmd {
	return b.connectThrough(t, b.sshd.Port(), name, append([]string{"--ephemeral"}, flags...)...)
}

// lasting is connect with a server that outlives the connection, and ends with the test.
func (b *box) lasting(t *testing.T, name string, flags ...string) *exec.Cmd {
	t.Helper()
	t.Cleanup(func() { b.endAll(t, name) })
	return b.connectThrough(t, b.sshd.Port(), name, flags...)
}

// endAll kills what an account runs.
func (b *box) endAll(t *testing.T, name string) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		running := b.running(name)
		for pid := range running {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(running) > 0 {
			return fmt.Errorf("%s runs %v", name, running)
		}
		return nil
	})
}

// connectThrough is connect through a port that leads to sshd.
func (b *box) connectThrough(t *testing.T, port, name string, flags ...string) *exec.Cmd {
	t.Helper()
	if _, err := os.Stat(b.accounts[name].shell); err != nil {
		t.Skipf("the shell of the account is missing: %v", err)
	}
	args := append(append([]string{"connect"}, flags...), "ssh")
	args = append(append(args, b.sshd.As(name).Flags(port)...), "127.0.0.1")
	return local(t, args...)
}

// local returns a command of the program, with a home of its own.
func local(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	command := exec.Command(program, args...)
	command.Dir = t.TempDir()
	command.Env = []string{"HOME=" + command.Dir, "PATH=" + os.Getenv("PATH")}
	return command
}

// cache is where an account keeps programs.
func (b *box) cache(name string) string {
	return filepath.Join(b.accounts[name].home, ".cache", "exec-server")
}

// programs returns the programs in a directory.
func programs(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, "*", "exec-server"))
	hidden, _ := filepath.Glob(filepath.Join(dir, ".*", "exec-server"))
	return append(found, hidden...)
}

// uidOf returns the user of a process, or -1. The owner of its directory in /proc will not
// do: that is root where the process lets nobody look at its memory.
func uidOf(pid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(status), "\nUid:")
	uid := -1
	_, _ = fmt.Sscan(rest, &uid)
	return uid
}

// running returns the command lines of the processes of an account.
func (b *box) running(name string) map[int]string {
	found := make(map[int]string)
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || uidOf(pid) != b.accounts[name].uid || !testkit.Alive(pid) {
			continue
		}
		words, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		found[pid] = strings.ReplaceAll(string(words), "\x00", " ")
	}
	return found
}

// vanished waits until nothing of an account runs.
func (b *box) vanished(t *testing.T, name string) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if running := b.running(name); len(running) > 0 {
			return fmt.Errorf("%s runs %v", name, running)
		}
		return nil
	})
}
