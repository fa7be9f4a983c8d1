package sandbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoMeans has servers without any means of confinement, and with programs in
// the place of bubblewrap that do not confine (row 44).
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
			m.start()
			if m.info.Sandbox.Means != "none" || m.info.Sandbox.Reason == "" {
				t.Fatalf("%+v", m.info.Sandbox)
			}
			m.refusesEverything()
		})
	}
}

// withoutNamespaces becomes a program that may not make user namespaces: in one of
// its own, whose limit is none.
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

// TestNoNamespaces has servers that the kernel does not let make user namespaces,
// nor bubblewrap (row 44).
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
				t.Skip("there is no bubblewrap; EXEC_SERVER_TEST_BWRAP names one")
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
			if got := m.info.Sandbox; got.Means != "none" || !strings.Contains(got.Reason, "the kernel allows no more user namespaces") && means != "bubblewrap" {
				t.Fatalf("%+v", got)
			}
			m.refusesEverything()
		})
	}
}

// refusesEverything checks that nothing is done that asks for a sandbox, that the
// error says in one sentence why and what to do, and that the rest works.
func (m *machine) refusesEverything() {
	m.t.Helper()
	for _, text := range []string{"sandbox intent cannot be enforced on this executor: ", "; allow user namespaces to this program ("} {
		m.refuses(m.workspaceWrite(), -32602, text)
		m.wants(-32603, text, "fs/writeFile", object{"path": uri(m.ws + "/x"), "dataBase64": "", "sandbox": m.workspaceWrite()})
	}
	if strings.ContainsAny(m.info.Sandbox.Reason, "\n") || strings.Contains(m.info.Sandbox.Reason, ". ") {
		m.t.Errorf("%q is more than a sentence", m.info.Sandbox.Reason)
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

// TestNetworkAlone has policies that leave files alone.
func TestNetworkAlone(t *testing.T) {
	m := prepareMachine(t, user{}, "bubblewrap")
	m.start()
	for _, sandbox := range []object{
		{"permissions": object{"type": "external", "network": "restricted"}, "windowsSandboxLevel": "disabled"},
		m.policy("restricted", special("root", "write")),
	} {
		m.attack(t, "alone", m.program, sandbox, false, 0)
	}
	m.refuses(object{"permissions": object{"type": "new"}, "windowsSandboxLevel": "disabled"}, -32602, "unknown variant `new`")
	if _, _, err := m.begin(command{argv: []string{"/none"}, sandbox: object{"permissions": object{"type": "external", "network": "restricted"}, "windowsSandboxLevel": "disabled"}}); err == nil {
		t.Error("a program that does not exist is started")
	}
}

func TestRequire(t *testing.T) {
	m := newMachine(t, user{}, "require")
	m.refuses(nil, -32602, "--sandbox=require")
	m.refuses(object{"permissions": object{"type": "disabled"}, "windowsSandboxLevel": "disabled"}, -32602, "--sandbox=require")
	m.says(m.workspaceWrite(), [2]string{"touch x", "done"})
}

func init() {
	attacks["landlock"] = landlockAttacks
}

// landlockAttacks are on what has no namespace of its own there.
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
}

// TestLandlock has the mode in which nothing but Landlock confines files.
func TestLandlock(t *testing.T) {
	for _, u := range users() {
		t.Run(u.name, func(t *testing.T) {
			m := newMachine(t, u, "landlock")
			readOnly := m.policy("restricted", special("root", "read"))
			m.says(readOnly, [2]string{"touch x", "Permission denied"}, [2]string{"cat file", "old"}, [2]string{"echo >/dev/null", "done"})
			m.refuses(m.workspaceWrite(), -32602, "--sandbox=landlock")
			m.refuses(m.policy("restricted", special("root", "read"), at(m.outside, "deny")), -32602, "--sandbox=landlock")
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
			for _, tty := range []bool{false, true} {
				m.attack(t, "landlock", m.program, readOnly, tty, 0)
			}
			p := m.run(command{tty: true, argv: []string{"/bin/sh", "-c", "echo own >$(tty)"}, sandbox: readOnly})
			m.contains("the command's terminal", m.written(p), "own")
		})
	}
}
