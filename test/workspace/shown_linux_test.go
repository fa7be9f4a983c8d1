package workspace

import (
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// mounts returns what is mounted outside of any namespace of a server.
func mounts(t *testing.T) string {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(table)
}

// needMounts configures a server that shows a directory, and skips the test where the
// kernel gives this user no namespace to mount it in.
func needMounts(m *machine, path, source string) {
	m.t.Helper()
	cmd := exec.Command("unshare", "--mount", "true")
	if m.uid != 0 {
		cmd = exec.Command("unshare", "--user", "--mount", "true")
	}
	if out, err := m.as(cmd).CombinedOutput(); err != nil {
		m.t.Skipf("this user can mount nothing here: %v: %s", err, out)
	}
	m.box("--workspace", path+"="+source)
}

// TestShown shows a directory under another path, and looks at it by all that the server
// offers. Where the user may not make the path, somebody must make it first.
func TestShown(t *testing.T) {
	forUsers(t, func(t *testing.T, m *machine) {
		source, path := m.dir("source"), m.home+"/somebody/project"
		m.write(source+"/file", "content")
		if os.Geteuid() == 0 {
			top := fmt.Sprintf("/var/workspace-of-%d-%d", os.Getpid(), m.uid)
			t.Cleanup(func() { _ = os.RemoveAll(top) })
			path = top + "/somebody/project"
		}
		needMounts(m, path, source)
		if m.uid != os.Geteuid() {
			m.fails(125, "make an empty directory of that path as root", "run", "--on", "box", "--", "true")
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		before := mounts(t)
		script := `pwd && cat file && echo from a process >process && ls / >/dev/null && test -r /etc/passwd && test -w /tmp`
		if out := m.must("run", "--on", "box", "-w", path, "--", "sh", "-c", script); out != path+"\ncontent" {
			t.Errorf("a process sees %q", out)
		}
		m.wants(source+"/process", "from a process\n")
		if out := m.must("cat", "--on", "box", path+"/file"); out != "content" {
			t.Errorf("the server reads %q", out)
		}
		out := m.must("run", "--on", "box", "-w", path, "--sandbox", "workspace-write", "--", "sh", "-c", "pwd && cat file && echo confined >confined")
		if out != path+"\ncontent" {
			t.Errorf("a confined process sees %q", out)
		}
		m.wants(source+"/confined", "confined\n")
		if r := m.run("run", "--on", "box", "-w", path, "--sandbox", "read-only", "--", "sh", "-c", "cat file && echo no >refused"); r.code == 0 || r.stdout != "content" {
			t.Errorf("a process that may only read: %+v", r)
		}
		m.wants(source+"/refused", "")
		m.confinedWrite(path, source)
		if entries, err := os.ReadDir(path); err != nil || len(entries) > 0 {
			t.Errorf("the mount point outside of the server has %v, %v", entries, err)
		}
		if after := mounts(t); after != before {
			t.Errorf("the mounts outside of the server were\n%s\nand are\n%s", before, after)
		}
	})
}

// TestLinksAbove shows a directory under a path, and from one, with links that root or the
// user has made.
func TestLinksAbove(t *testing.T) {
	forUsers(t, func(t *testing.T, m *machine) {
		source := m.dir("real/source")
		m.write(source+"/file", "content")
		top := m.dir("top")
		for name, target := range map[string]string{"/link": m.home + "/real", "/up": top} { // as /home is a link on some machines
			if err := os.Symlink(target, m.home+name); err != nil {
				t.Fatal(err)
			}
		}
		path := m.home + "/up/project"
		needMounts(m, path, m.home+"/link/source")
		for _, path := range []string{path, top + "/project"} {
			if out := m.must("run", "--on", "box", "-w", path, "--", "cat", "file"); out != "content" {
				t.Errorf("a process in %s sees %q", path, out)
			}
		}
	})
}

// confinedWrite lets a helper in a sandbox write a file of the workspace, and one beside it.
func (m *machine) confinedWrite(path, source string) {
	m.t.Helper()
	const request = `{"id":%d,"method":"fs/writeFile","params":{"path":"file://%s","dataBase64":"%s","sandbox":{"permissions":{"type":"managed","file_system":` +
		`{"type":"restricted","entries":[{"path":{"type":"special","value":{"kind":"root"}},"access":"read"},{"path":{"type":"path","path":"%s"},"access":"write"}]},` +
		`"network":"restricted"},"windowsSandboxLevel":"disabled","windowsSandboxPrivateDesktop":false,"useLegacyLandlock":false}}}` + "\n"
	data := base64.StdEncoding.EncodeToString([]byte("by a helper"))
	input := `{"id":0,"method":"initialize","params":{"clientName":"test"}}` + "\n" + `{"method":"initialized"}` + "\n" +
		fmt.Sprintf(request, 1, path+"/helped", data, path) + fmt.Sprintf(request, 2, m.home+"/refused", data, path)
	r := m.feed(input, "serve", "--listen", "stdio", "--workspace", path+"="+source)
	m.wants(source+"/helped", "by a helper")
	m.wants(m.home+"/refused", "")
	if m.t.Failed() {
		m.t.Logf("the server says %s%s", r.stdout, r.stderr)
	}
}

// TestMade makes a directory, and shows nothing.
func TestMade(t *testing.T) {
	forUsers(t, func(t *testing.T, m *machine) {
		path := m.home + "/a/b"
		m.box("--workspace", path)
		if out := m.must("run", "--on", "box", "-w", path, "--", "pwd"); out != path+"\n" {
			t.Errorf("pwd prints %q", out)
		}
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	})
}

// TestMissingDirectory says what to do about a directory that is not there.
func TestMissingDirectory(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	m.box()
	m.fails(126, `working directory "/no/such/directory": no such file or directory (os error 2); the directory is not on this machine: `+
		"have the server make it with --workspace", "run", "--on", "box", "-w", "/no/such/directory", "--", "true")
}

// TestLinks shows a directory by a link where nothing can be mounted.
func TestLinks(t *testing.T) {
	uid := os.Geteuid()
	if uid == 0 {
		uid = ordinary // root can mount
	}
	m := newMachine(t, uid)
	first, second, path := m.dir("first"), m.dir("second"), m.home+"/shown/here"
	m.write(first+"/file", "first")
	for range 2 { // made, and used again
		m.box("--without=supervisor", "--workspace", path+"="+first)
		if out := m.must("cat", "--on", "box", path+"/file"); out != "first" {
			t.Errorf("%s shows %q", first, out)
		}
		m.must("run", "--on", "box", "-w", path, "--sandbox", "workspace-write", "--", "sh", "-c", "echo x >written")
		m.wants(first+"/written", "x\n")
	}
	m.box("--without=supervisor", "--workspace", path+"="+second)
	m.fails(1, "file exists", "cat", "--on", "box", path+"/file")
	if text, err := os.Readlink(path); err != nil || text != first {
		t.Errorf("the link leads to %q, %v", text, err)
	}
}

// TestPlantedLinks refuses links of other users, who could lead the server elsewhere.
func TestPlantedLinks(t *testing.T) {
	testkit.System(t, testkit.Root)
	m := newMachine(t, 0)
	treasure, public := m.dir("treasure"), m.dir("public")
	if err := os.Chmod(public, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	planted := public + "/planted"
	if err := os.Symlink(treasure, planted); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(planted, ordinary, ordinary); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{planted, planted + "/new", planted + "=" + m.home + "/other", m.home + "/shown=" + planted} {
		m.box("--workspace", flag)
		m.fails(125, fmt.Sprintf("%s is a link of the user %d, who could redirect it", planted, ordinary), "run", "--on", "box", "--", "true")
	}
	if entries, err := os.ReadDir(treasure); err != nil || len(entries) > 0 {
		t.Errorf("behind the link there is %v, %v", entries, err)
	}
}

// TestInvalidWorkspaces refuses what cannot be meant.
func TestInvalidWorkspaces(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	for flag, says := range map[string]string{
		"relative":     "expected an absolute path",
		"/a=":          "expected a path after the =",
		"/srv/a=/srv":  "one of the directories contains the other",
		"/srv=/srv/ab": "one of the directories contains the other",
	} {
		m.fails(2, says, "serve", "--listen", "stdio", "--workspace", flag)
	}
}

// TestSharedMounts shows a directory on a machine that shares its mounts, as those with
// systemd do: the workspace stays in the server's namespace, and what is mounted outside
// later appears there.
func TestSharedMounts(t *testing.T) {
	testkit.System(t, testkit.Root)
	if !testkit.InMountNamespace(t) {
		return
	}
	m := newMachine(t, 0)
	source, top := m.dir("source"), testkit.Mount(t, "tmpfs", "tmpfs", "mode=755")
	if err := unix.Mount("", top, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	path, late := top+"/project", top+"/late"
	for _, dir := range []string{path, late} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	needMounts(m, path, source)
	before := mounts(t)
	ended := make(chan result, 1)
	go func() {
		ended <- m.run("run", "--on", "box", "-w", path, "--", "sh", "-c",
			"echo begun >begun; n=0; until test -s ../late/file || test $n -gt 300; do sleep 0.1; n=$((n+1)); done; cat ../late/file")
	}()
	testkit.WaitFor(t, testkit.Patience, func() error { _, err := os.Stat(source + "/begun"); return err })
	if now := mounts(t); now != before {
		t.Errorf("the mounts outside of the server were\n%s\nand are\n%s", before, now)
	}
	if err := unix.Mount("tmpfs", late, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(late, unix.MNT_DETACH) }()
	m.write(late+"/file", "mounted later")
	if r := <-ended; r.code != 0 || r.stdout != "mounted later" {
		t.Errorf("the process saw of the later mount: %+v", r)
	}
}
