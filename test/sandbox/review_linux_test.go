package sandbox_test

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/sandbox"
	"execserver/internal/sandbox/launcher"
	"execserver/protocol"
	"execserver/server"
	"execserver/transport"
)

func init() {
	attacks["datagrams"] = datagramAttacks
	attacks["program"] = programAttacks
}

// datagram sends one to a name from a socket that is connected to nothing, or to
// something else.
func datagram(fd int, err error, name string) error {
	if err != nil {
		return err
	}
	return unix.Sendmsg(fd, []byte("x"), nil, &unix.SockaddrUnix{Name: name}, 0)
}

var datagramAttacks = []attempt{
	{"22 sendmsg to a daemon", "EPERM", func(a *attacker) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		return datagram(fd, err, a.socket)
	}},
	{"22 sendmsg from a raw socket", "EPERM", func(a *attacker) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_RAW, 0)
		return datagram(fd, err, a.socket)
	}},
	{"22 sendmsg from a pair", "EPERM", func(a *attacker) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		return datagram(pair[0], err, a.socket)
	}},
	{"22 sendmsg from a pair of streams", "EISCONN", func(a *attacker) error {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		return datagram(pair[0], err, a.socket)
	}},
}

// TestDatagrams has what a daemon that takes datagrams gets of a command without
// a network: nothing.
func TestDatagrams(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		path := filepath.Join(m.base, "socket")
		daemon, err := net.ListenPacket("unixgram", path)
		m.must(err)
		defer daemon.Close()
		m.must(unix.Chmod(path, 0o777))
		p := m.run(command{sandbox: m.workspaceWrite(), argv: []string{
			m.program, "attack", "datagrams", m.ws, m.outside, "1", "1", path, "x",
		}})
		judge(t, datagramAttacks, m.written(p))
	})
}

// TestMovedParents has that no command takes a directory with something protected
// in it out of the way of the next.
func TestMovedParents(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		m.mkdir(filepath.Join(m.ws, "config/secrets"))
		m.write(filepath.Join(m.ws, "config/secrets/key"), "secret")
		m.mkdir(filepath.Join(m.ws, "group/project/.git"))
		sandbox := m.workspaceWrite(project("config/secrets", "deny"), project("group/project", "write"))
		m.says(sandbox,
			[2]string{"mv config moved", "busy"}, [2]string{"mv group moved", "busy"},
			[2]string{"cat moved/secrets/key", "No such file"}, [2]string{"cat config/secrets/key", "Permission denied"},
			[2]string{"touch moved/project/.git/x", "No such file"}, [2]string{"touch group/project/.git/x", "Read-only file system"},
			[2]string{"touch config/x group/x group/project/x", "done"})
	})
}

// TestLockedDirectory has a policy that denies something in a directory that
// nobody may look into.
func TestLockedDirectory(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		if m.user.uid == 0 && m.means == "bubblewrap" {
			t.Skip("the superuser makes a mount in there that cannot be checked inside, which is refused")
		}
		m.mkdir(filepath.Join(m.ws, "locked/a/b"))
		m.must(unix.Chmod(filepath.Join(m.ws, "locked"), 0))
		m.says(m.workspaceWrite(project("locked/a/b", "deny")), [2]string{"touch x", "done"})
	})
}

// TestSharedLinks has entries whose paths lead over the same link, as /bin does
// on most machines.
func TestSharedLinks(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		m.must(unix.Symlink(m.outside, filepath.Join(m.base, "alias")))
		sandbox := m.policy("restricted", special("minimal", "read"), special("project_roots", "write"),
			at("/bin/sh", "read"), at(filepath.Join(m.base, "alias"), "read"), at(filepath.Join(m.base, "alias/file"), "read"))
		m.says(sandbox, [2]string{"cat " + filepath.Join(m.base, "alias/file"), "old"})
	})
}

// TestPatternsOfClients has patterns as the released clients' own server
// understands them.
func TestPatternsOfClients(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		m.write(filepath.Join(m.ws, "dir/key.pem"), "secret")
		m.must(unix.Symlink(m.outside, filepath.Join(m.base, "alias")))
		for pattern, file := range map[string]string{
			"**/*.{env,pem}":         "dir/key.pem",
			"**/[!x]ey.pem":          "dir/key.pem",
			m.base + "/alias/f*":     m.outside + "/file",
			m.base + "/{outs,x}*/f*": m.outside + "/file",
		} {
			m.says(m.workspaceWrite(glob(pattern)), [2]string{"cat " + file, "Permission denied"})
		}
		m.refuses(m.workspaceWrite(glob("**/*.{env,pem")), -32602, "a brace is not closed")
	})
}

// TestServersProgram has that this program in a sandbox, as the helper that serves
// requests about files, is no way to the one outside.
func TestServersProgram(t *testing.T) {
	for _, means := range []string{"userNamespace", "namespaces", "bubblewrap"} {
		t.Run(means, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, user{}, means)
			engine := sandbox.New(&sandbox.Options{Means: []sandbox.Means{sandbox.Means(means)}, Bubblewrap: m.bubblewrap, StateDir: m.state})
			defer engine.Close()
			policy, err := protocol.DecodeSandbox(m.encoded(m.workspaceWrite()), true)
			m.must(err)
			confinement, err := engine.Confine(policy, sandbox.Context{})
			m.must(err)
			defer confinement.Release()
			var output strings.Builder
			m.must(confinement.Run(t.Context(), sandbox.Command{
				Program: launcher.Self, Argv: []string{"self", "attack", "program", m.ws, m.outside, "1", "1", "/", "x"}, Dir: "/", Become: true,
			}, func(cmd *exec.Cmd) { cmd.Stdout = &output }))
			judge(t, programAttacks, output.String())
		})
	}
}

var programAttacks = []attempt{
	{"18 chmod of the helper's program", "EROFS", func(*attacker) error { return unix.Chmod("/proc/self/exe", 0o755) }},
	{"18 utimes of the helper's program", "EROFS", func(*attacker) error { return unix.Utimes("/proc/self/exe", make([]unix.Timeval, 2)) }},
	{"18 write the helper's program", "EROFS ETXTBSY", func(*attacker) error { return write("/proc/self/exe") }},
}

func (m *machine) encoded(value any) []byte {
	text, err := json.Marshal(value)
	m.must(err)
	return text
}

// TestFileAsWorkspace has the policy that a client sends by default, with a file
// in the place of the workspace.
func TestFileAsWorkspace(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		file := filepath.Join(m.ws, "file")
		sandbox := m.workspaceWrite()
		sandbox["workspaceRoots"] = []string{uri(file)}
		m.says(sandbox, [2]string{"echo new >file && cat file", "new"}, [2]string{"touch dir/x", "Read-only file system"})
	})
}

// TestDeniedInProc has that what is denied in /proc is denied, although the
// sandbox has one of its own.
func TestDeniedInProc(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		m.says(m.workspaceWrite(at("/proc/cpuinfo", "deny"), at("/proc/sys", "deny")),
			[2]string{"cat /proc/cpuinfo", "Permission denied"}, [2]string{"ls /proc/sys", "Permission denied"}, [2]string{"cat /proc/version", "Linux"})
		m.says(m.policy("restricted", special("minimal", "read"), special("project_roots", "write"), at("/proc", "deny"), at("/dev/shm", "deny")),
			[2]string{"ls /proc", "Permission denied"}, [2]string{"ls /dev/shm", "Permission denied"})
		m.says(m.workspaceWrite(at("/proc", "deny")), [2]string{"ls /proc", "Permission denied"})
	})
}

// TestEmptyDirectoryStays has an empty directory of the machine that looks like
// what the server makes for a time, where it never makes any.
func TestEmptyDirectoryStays(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		for _, name := range []string{"empty", "void"} {
			m.mkdir(filepath.Join(m.outside, name))
			m.must(unix.Chmod(filepath.Join(m.outside, name), 0o555))
		}
		m.says(m.workspaceWrite(at(filepath.Join(m.outside, "empty"), "deny")), [2]string{"touch x", "done"})
		m.says(m.policy("restricted", special("minimal", "read"), special("project_roots", "write"),
			at(filepath.Join(m.outside, "void"), "read")), [2]string{"touch x", "done"})
		for _, name := range []string{"empty", "void"} {
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(m.outside, name), &st); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestRequireMoreThanNothing has policies that allow everything, where the server
// starts nothing without a sandbox.
func TestRequireMoreThanNothing(t *testing.T) {
	m := newMachine(t, user{}, "require")
	m.refuses(m.policy("enabled", special("root", "write")), -32602, "--sandbox=require")
	m.refuses(m.policy("restricted", special("root", "write")), -32602, "--sandbox=require")
	m.refuses(object{"permissions": object{"type": "external", "network": "restricted"}, "windowsSandboxLevel": "disabled"}, -32602, "--sandbox=require")
	m.refuses(m.policy("enabled", special("root", "write"), at(m.ws, "write")), -32602, "--sandbox=require")
	m.says(m.policy("enabled", special("root", "write"), at(m.outside, "deny")), [2]string{"ls " + m.outside, "Permission denied"})
}

// TestParamsOfSeveralLines has params as a client with a WebSocket may send them.
func TestParamsOfSeveralLines(t *testing.T) {
	m := newMachine(t, user{}, "userNamespace")
	engine := sandbox.New(&sandbox.Options{StateDir: m.state})
	defer engine.Close()
	client, end := transport.Pipe(1 << 20)
	served := make(chan error, 1)
	go func() { served <- server.New(&server.Options{Sandbox: engine}).ServeOnly(end) }()
	params, err := json.MarshalIndent(object{"path": uri(m.ws + "/lines"), "dataBase64": "aGVsbG8=", "sandbox": m.workspaceWrite()}, "", "\n")
	m.must(err)
	for _, message := range []string{
		`{"id":1,"method":"initialize","params":{"clientName":"test"}}`, `{"method":"initialized"}`,
		`{"id":2,"method":"fs/writeFile","params":` + string(params) + `}`,
	} {
		m.must(client.Write([]byte(message)))
	}
	for range 2 {
		answer, err := client.Read(nil)
		m.must(err)
		if strings.Contains(string(answer), `"error"`) {
			t.Errorf("%s", answer)
		}
	}
	m.must(client.Close(transport.Reason{}))
	<-served
}

// TestFirstProcess has a server that is the first process of a container: the
// numbers of its processes are those of processes in a sandbox.
func TestFirstProcess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only the superuser makes a namespace of processes by itself")
	}
	for _, means := range []string{"userNamespace", "namespaces", "bubblewrap"} {
		t.Run(means, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, user{}, means)
			cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", m.program, "serve", means, m.bubblewrap, m.state)
			cmd.Stdin = strings.NewReader(`{"id":1,"method":"initialize","params":{"clientName":"test"}}` + "\n")
			output, err := cmd.Output()
			if want := `"means":"` + means + `"`; !strings.Contains(string(output), want) {
				t.Errorf("%v: %s, want %s", err, output, want)
			}
		})
	}
}
