package sandbox_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// TestNoMeans runs servers without any means of confinement, and with a program instead of
// bubblewrap that does not confine (row 44).
func TestNoMeans(t *testing.T) {
	for name, script := range map[string]string{
		"missing": "",
		"fails":   "#!/bin/sh\nexit 1\n",
		"hangs":   "#!/bin/sh\nexec sleep 1000\n",
		"bare":    "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift 2\nexec \"${0%/bwrap}/program\" \"$@\"\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := prepareMachine(t, user{}, "bubblewrap")
			m.bubblewrap = filepath.Join(m.base, "bwrap")
			_ = os.Remove(m.bubblewrap)
			if script != "" {
				m.must(os.WriteFile(m.bubblewrap, []byte(script), 0o755))
			}
			if name == "hangs" {
				m.env = append(m.env, probeTimeoutVariable+"=100ms")
			}
			m.start()
			if m.conn.Info.Sandbox.Means != "none" || m.conn.Info.Sandbox.Reason == "" {
				t.Fatalf("%+v", m.conn.Info.Sandbox)
			}
			m.refusesEverything()
		})
	}
}

// TestBubblewrapFails has a bubblewrap that fails to make a sandbox, which may be because
// something that it mounts has gone meanwhile: once, and ever after.
func TestBubblewrapFails(t *testing.T) {
	bwrap := bubblewrapOf()
	if bwrap == "" {
		testkit.Need(t, "bwrap")
	}
	m := prepareMachine(t, user{}, "bubblewrap")
	m.bubblewrap = filepath.Join(m.base, "bwrap")
	m.must(os.Remove(m.bubblewrap))
	m.executable(m.bubblewrap, []byte(`#!/bin/sh
PATH=/usr/bin:/bin
cd "${0%/bwrap}"
if [ -e always ] || rm once 2>/dev/null; then
	echo "bwrap: Can't mount x on /newroot/x: No such file or directory" >&2
	exit 1
fi
exec `+bwrap+` "$@"
`))
	m.start()
	m.must(os.WriteFile(filepath.Join(m.base, "once"), nil, 0o644))
	m.says(m.workspaceWrite(), [2]string{"echo here", "here"})
	if _, err := os.Stat(filepath.Join(m.base, "once")); err == nil {
		t.Error("bubblewrap has not failed")
	}
	m.must(os.WriteFile(filepath.Join(m.base, "always"), nil, 0o644))
	for _, tty := range []bool{false, true} {
		_, _, err := m.begin(command{argv: []string{"/bin/true"}, sandbox: m.workspaceWrite(), tty: tty})
		const want = `bubblewrap has ended before it started the launcher: "bwrap: Can't mount x on /newroot/x: No such file or directory"`
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("terminal %v: %v", tty, err)
		}
	}
}

// withoutNamespaces executes a program that may not make user namespaces. The program runs
// in a user namespace with a limit of 0.
func withoutNamespaces(argv []string) error {
	runtime.LockOSThread()
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	return unix.Exec(argv[0], argv, os.Environ())
}

// TestNoNamespaces runs servers on a kernel that allows no user namespaces, neither to
// them nor to bubblewrap (row 44).
func TestNoNamespaces(t *testing.T) {
	for _, means := range []string{"userNamespace", "bubblewrap", "userNamespace,namespaces,bubblewrap"} {
		t.Run(means, func(t *testing.T) {
			t.Parallel()
			u := user{"self", 0}
			if os.Geteuid() == 0 {
				u = user{"ordinary", 61234}
			}
			m := prepareMachine(t, u, means)
			if m.bubblewrap == "" && means == "bubblewrap" {
				testkit.Need(t, "bwrap")
			}
			id := os.Geteuid()
			if u.uid != 0 {
				id = u.uid
			}
			same := []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
			m.inside = &syscall.SysProcAttr{
				Cloneflags: unix.CLONE_NEWUSER, UidMappings: same, GidMappings: same, AmbientCaps: []uintptr{unix.CAP_SYS_RESOURCE},
				Credential: &syscall.Credential{Uid: uint32(id), Gid: uint32(id), NoSetGroups: true},
			}
			m.through = []string{"without-namespaces"}
			if u.uid == 0 {
				m.inside.Credential = nil
			}
			m.start()
			if got := m.conn.Info.Sandbox; got.Means != "none" || !strings.Contains(got.Reason, "the kernel allows no more user namespaces") && means != "bubblewrap" {
				t.Fatalf("%+v", got)
			}
			m.refusesEverything()
		})
	}
}

// refusesEverything checks that the server refuses every request with a sandbox, that the
// error says in one sentence why and what to do, and that other requests work.
func (m *machine) refusesEverything() {
	m.t.Helper()
	for _, text := range []string{"the sandbox cannot be enforced on this machine: ", "; allow user namespaces to this program ("} {
		m.refuses(m.workspaceWrite(), -32602, text)
		m.wants(-32603, text, "fs/writeFile", object{"path": uri(m.ws + "/x"), "dataBase64": "", "sandbox": m.workspaceWrite()})
	}
	if strings.ContainsAny(m.conn.Info.Sandbox.Reason, "\n") || strings.Contains(m.conn.Info.Sandbox.Reason, ". ") {
		m.t.Errorf("%q is more than a sentence", m.conn.Info.Sandbox.Reason)
	}
	if _, err := os.Lstat(m.ws + "/x"); err == nil {
		m.t.Error("the file is written")
	}
	// What needs no confinement goes on to work.
	if p := m.run(command{argv: []string{"/bin/true"}}); p.exit.ExitCode != 0 || p.sandboxType != "none" {
		m.t.Errorf("%+v %s", p.exit, p.sandboxType)
	}
	disabled := object{"permissions": object{"type": "disabled"}, "windowsSandboxLevel": "disabled"}
	if p := m.run(command{argv: []string{"/bin/sh", "-c", "echo sandbox; exit 1"}, sandbox: disabled}); p.sandboxType != "linuxSeccomp" || !p.exit.SandboxDenied {
		m.t.Errorf("%+v %s", p.exit, p.sandboxType)
	}
}

// TestNetworkAlone uses policies that restrict only the network.
func TestNetworkAlone(t *testing.T) {
	m := prepareMachine(t, user{}, "bubblewrap")
	m.start()
	for _, sandbox := range []object{
		{"permissions": object{"type": "external", "network": "restricted"}, "windowsSandboxLevel": "disabled"},
		m.policy("restricted", special("root", "write")),
	} {
		m.attack(t, "alone", m.program, sandbox, false, 0)
	}
	m.refuses(object{"permissions": object{"type": "new"}, "windowsSandboxLevel": "disabled"}, -32602, `got "new"`)
	if _, _, err := m.begin(command{argv: []string{"/none"}, sandbox: object{"permissions": object{"type": "external", "network": "restricted"}, "windowsSandboxLevel": "disabled"}}); err == nil {
		t.Error("a program that does not exist is started")
	}
}

func TestRequire(t *testing.T) {
	m := newMachine(t, user{}, "require")
	m.refuses(nil, -32602, "this server starts nothing that may write everywhere; request a sandbox that restricts writes")
	m.refuses(object{"permissions": object{"type": "disabled"}, "windowsSandboxLevel": "disabled"}, -32602, "this server starts nothing that may write everywhere; request a sandbox that restricts writes")
	m.says(m.workspaceWrite(), [2]string{"touch x", "done"})
}

func init() {
	attacks["landlock"] = landlockAttacks
}

// landlockAttacks are attempts on resources for which this mode has no namespace.
var landlockAttacks = []attempt{
	{"53 limits of the server", "EPERM", func(a *attacker) error {
		return unix.Prlimit(a.serverPid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
	}},
	{"53 limits of its own", "allowed", func(*attacker) error { return unix.Prlimit(0, unix.RLIMIT_CORE, &unix.Rlimit{}, nil) }},
	{"53 shared memory", "EPERM", func(*attacker) error {
		id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, 0o600)
		if err == nil {
			_, err = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		}
		return err
	}},
	{"53 another terminal", "EACCES", func(a *attacker) error { return write(a.in("terminal")) }},
	{"53 what is typed at another terminal", "EACCES", func(a *attacker) error { return read(a.in("terminal")) }},
	{"53 a device by another name", "EACCES", func(a *attacker) error { return read(a.in("device")) }},
	{"53 a device that everybody may use", "allowed", func(*attacker) error { return read("/dev/zero") }},
	{"53 names of devices", "allowed", func(*attacker) error { return list("/dev") }},
	{"53 its own processes", "allowed", func(*attacker) error { return exec.Command("/bin/sh", "-c", "cat /proc/self/stat").Run() }},
	{"53 a queue", "EPERM", func(*attacker) error {
		return call(unix.SYS_MQ_OPEN, text("exec-server-test"), unix.O_CREAT|unix.O_RDWR, 0o600, 0)
	}},
	{"53 remove a queue", "EPERM", func(*attacker) error { return call(unix.SYS_MQ_UNLINK, text("exec-server-test-missing")) }},
}

// TestLandlockState has directories of configuration and state where everything may be read
// and Landlock alone confines files. Some exist, and some appear while a command runs.
func TestLandlockState(t *testing.T) {
	for _, u := range users() {
		t.Run(u.name, func(t *testing.T) {
			t.Parallel()
			m := prepareMachine(t, u, "landlock")
			fleet, later := m.base+"/.config/exec-fleet", m.base+"/.config/exec-server"
			m.mkdir(fleet)
			m.write(fleet+"/token", "secret")
			m.start()
			if m.conn.Info.Sandbox.Means != "landlock" {
				t.Skip(m.conn.Info.Sandbox.Reason)
			}
			sandbox := m.policy("restricted", special("root", "read"))
			const denied = "Permission denied"
			m.says(sandbox, [2]string{"cat " + fleet + "/token", denied}, [2]string{"cat " + m.state + "/*.targets", denied},
				[2]string{"cat " + m.outside + "/file", "old"}, [2]string{"ls " + m.base, "outside"})
			if m.call("fs/readFile", object{"path": uri(fleet + "/token"), "sandbox": sandbox}, nil) == nil {
				t.Error("fs/readFile shows what commands cannot read")
			}
			m.appears(sandbox, later, denied)
		})
	}
}

// TestLandlockSecrets has files with secrets of the server where everything may be read and Landlock
// alone confines files: in a directory of their own, in one with other files, and one that is
// replaced while a command runs.
func TestLandlockSecrets(t *testing.T) {
	for _, u := range users() {
		t.Run(u.name, func(t *testing.T) {
			t.Parallel()
			m := prepareMachine(t, u, "landlock")
			shared, own := m.base+"/token", m.base+"/own/token"
			m.mkdir(m.base + "/own")
			m.write(shared, "secret")
			m.write(own, "secret")
			m.start()
			if m.conn.Info.Sandbox.Means != "landlock" {
				t.Skip(m.conn.Info.Sandbox.Reason)
			}
			const denied = "Permission denied"
			for _, sandbox := range []object{
				m.policy("restricted", special("root", "read")),
				m.policy("restricted", special("minimal", "read"), at(m.base, "read")),
			} {
				m.says(sandbox, [2]string{"cat " + shared, denied}, [2]string{"cat " + own, denied}, [2]string{"cat " + m.outside + "/file", "old"})
				for _, secret := range []string{shared, own} {
					if m.call("fs/readFile", object{"path": uri(secret), "sandbox": sandbox}, nil) == nil {
						t.Errorf("fs/readFile shows %s", secret)
					}
				}
				p, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", "echo ready; read line; LC_ALL=C cat " + shared + " 2>&1"}, sandbox: sandbox})
				m.must(err)
				m.awaitOutput(p, "ready")
				m.write(shared+".new", "secret")
				m.must(os.Rename(shared+".new", shared))
				m.must(m.call("process/write", object{"processId": id, "chunk": []byte("go\n"), "writeId": "go"}, nil))
				m.await(p)
				m.contains("it reads the new secret", m.written(p), denied)
			}
		})
	}
}

// appears has a directory of configuration appear while a command runs, which then reads it.
func (m *machine) appears(sandbox object, dir, want string) {
	m.t.Helper()
	p, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", "echo ready; read line; LC_ALL=C cat " + dir + "/token 2>&1"}, sandbox: sandbox})
	m.must(err)
	m.awaitOutput(p, "ready")
	m.mkdir(dir)
	m.write(dir+"/token", "secret")
	m.must(m.call("process/write", object{"processId": id, "chunk": []byte("go\n"), "writeId": "go"}, nil))
	m.await(p)
	m.contains("it reads what has appeared", m.written(p), want)
}

// TestLandlock tests the mode in which Landlock alone confines files.
func TestLandlock(t *testing.T) {
	for _, u := range users() {
		t.Run(u.name, func(t *testing.T) {
			m := newMachine(t, u, "landlock")
			readOnly := m.policy("restricted", special("root", "read"))
			m.says(readOnly, [2]string{"touch x", "Permission denied"}, [2]string{"cat file", "old"}, [2]string{"echo >/dev/null", "done"})
			m.refuses(m.workspaceWrite(), -32602, "this server confines files by Landlock alone")
			m.refuses(m.policy("restricted", special("root", "read"), at(m.outside, "deny")), -32602, "this server confines files by Landlock alone")
			const refused = "cannot keep one with a network from the sockets of other programs"
			m.refuses(m.policy("enabled", special("root", "read")), -32602, refused)
			m.refuses(m.policy("enabled", special("minimal", "read"), at(m.base, "read")), -32602, refused)
			terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
			m.must(err)
			defer terminal.Close()
			number, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
			m.must(err)
			m.must(unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0))
			name := fmt.Sprint("/dev/pts/", number)
			m.own(name)
			m.must(os.Symlink(name, filepath.Join(m.ws, "terminal")))
			m.must(os.Symlink("/dev/ptmx", filepath.Join(m.ws, "device")))
			for _, tty := range []bool{false, true} {
				m.attack(t, "landlock", m.program, readOnly, tty, 0)
			}
			// Landlock does not restrict these changes; the server does.
			before := m.snapshot(m.ws)
			for _, change := range []object{{"mode": 0o600}, {"modifiedAtMs": 1000}, {"size": 0}} {
				change["path"], change["sandbox"] = uri(filepath.Join(m.ws, "file")), readOnly
				m.wants(-32603, "read-only file system (os error 30)", "fs/setMetadata", change)
			}
			if after := m.snapshot(m.ws); after != before {
				t.Errorf("the workspace has changed to %s", after)
			}
			p := m.run(command{tty: true, argv: []string{"/bin/sh", "-c", "echo own >$(tty)"}, sandbox: readOnly})
			m.contains("the command's terminal", m.written(p), "own")
		})
	}
}
