package sandbox_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/protocol"
)

// says runs shell commands in a sandbox and checks that the output of each contains a
// text.
func (m *machine) says(sandbox any, tries ...[2]string) {
	m.t.Helper()
	for _, try := range tries {
		p := m.run(command{argv: []string{"/bin/sh", "-c", "LC_ALL=C; export LC_ALL; " + try[0] + " 2>&1 && echo done"}, sandbox: sandbox})
		if got := m.written(p); !strings.Contains(got, try[1]) {
			m.t.Errorf("%s: %q, want %q", try[0], got, try[1])
		}
	}
}

func (m *machine) contains(what, got, want string) {
	m.t.Helper()
	if !strings.Contains(got, want) {
		m.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// refuses checks that the server refuses to start a command, and its reason.
func (m *machine) refuses(sandbox any, code protocol.Code, text string) {
	m.t.Helper()
	_, _, err := m.begin(command{argv: []string{"/bin/sh", "-c", "touch ran"}, sandbox: sandbox})
	failed, ok := errors.AsType[*protocol.Error](err)
	if !ok || failed.Code != code || !strings.Contains(failed.Message, text) {
		m.t.Errorf("%v, want %d and %q", err, code, text)
	}
	if _, err := os.Lstat(filepath.Join(m.ws, "ran")); err == nil {
		m.t.Error("the command has run")
	}
}

func (m *machine) mkdir(path string) { m.must(os.MkdirAll(path, 0o755)); m.own(m.base) }
func (m *machine) write(path, text string) {
	m.must(os.WriteFile(path, []byte(text), 0o644))
	m.own(path)
}

// TestPolicies checks the rules of policies for files (rows 12, 13, 36 to 38 and 47).
func TestPolicies(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		const denied = "Permission denied"
		file := filepath.Join(m.outside, "file")
		t.Run("read-only", func(t *testing.T) {
			m.says(m.policy("restricted", special("root", "read")),
				[2]string{"touch x", readOnly}, [2]string{"cat " + file, "old"}, [2]string{"touch /tmp/x-$$", readOnly})
		})
		t.Run("more roots", func(t *testing.T) {
			m.says(m.workspaceWrite(at(m.outside, "write")),
				[2]string{"touch " + m.outside + "/more", "done"}, [2]string{"touch " + m.base + "/x", readOnly},
				[2]string{"mkdir " + m.outside + "/.git", "File exists"})
			m.clean(m.outside)
		})
		t.Run("a file as root", func(t *testing.T) {
			m.says(m.policy("restricted", special("root", "read"), at(file, "write")),
				[2]string{"echo new >" + file, "done"}, [2]string{"touch " + m.outside + "/x", readOnly})
		})
		t.Run("nested", func(t *testing.T) { // row 38
			m.mkdir(filepath.Join(m.ws, "a/b/c"))
			a := filepath.Join(m.ws, "a")
			m.says(m.policy("restricted", special("root", "read"), special("project_roots", "write"), at(a, "read"), at(a+"/b", "write"), at(a+"/b/c", "deny")),
				[2]string{"touch x", "done"}, [2]string{"touch a/x", readOnly}, [2]string{"touch a/b/x", "done"}, [2]string{"ls a/b/c", denied})
		})
		t.Run("the same path twice", func(t *testing.T) { // row 38
			m.says(m.policy("restricted", special("root", "read"), at(m.ws, "read"), at(m.ws, "write")), [2]string{"touch x", "done"})
			m.says(m.policy("restricted", special("root", "read"), at(m.outside, "write"), at(m.outside, "deny")), [2]string{"ls " + m.outside, denied})
		})
		t.Run("deny", func(t *testing.T) { // row 36
			m.write(filepath.Join(m.ws, "dir/secret.env"), "secret")
			m.must(os.Symlink(m.outside, filepath.Join(m.base, "alias")))
			m.says(m.workspaceWrite(at(m.outside, "deny"), glob("**/*.env"), project("hidden/deep", "deny")),
				[2]string{"ls " + m.outside, denied}, [2]string{"cat " + file, denied}, [2]string{"cat " + m.base + "/alias/file", denied},
				[2]string{"cat " + m.ws + "/../outside/file", denied}, [2]string{"cat dir/secret.env", denied},
				[2]string{"ln dir/secret.env got", "cross-device"}, [2]string{"mkdir hidden", "File exists"}, [2]string{"cat dir/../file", "old"})
		})
		t.Run("minimal", func(t *testing.T) { // row 37
			m.says(m.policy("restricted", special("minimal", "read"), special("project_roots", "write")),
				[2]string{"touch x", "done"}, [2]string{"cat " + file, "No such file"}, [2]string{"ls /root", "No such file"},
				[2]string{"ls " + m.state, "No such file"}, [2]string{"touch /x", readOnly}, [2]string{"touch .git/x", readOnly},
				[2]string{"touch /etc/x", readOnly}, [2]string{"test -c /dev/null", "done"})
		})
		t.Run("no roots", func(t *testing.T) {
			sandbox := m.workspaceWrite()
			sandbox["workspaceRoots"] = []string{}
			m.says(sandbox, [2]string{"touch x", readOnly})
			delete(sandbox, "workspaceRoots")
			m.says(sandbox, [2]string{"touch x", "done"}, [2]string{"touch .git/x", readOnly})
		})
		t.Run("a .git file", func(t *testing.T) { // row 12
			tree := filepath.Join(m.base, "tree")
			m.mkdir(filepath.Join(tree, "meta"))
			m.write(filepath.Join(tree, ".git"), "gitdir: meta\n")
			m.says(m.policy("restricted", special("root", "read"), at(tree, "write")),
				[2]string{"touch " + tree + "/x", "done"}, [2]string{"touch " + tree + "/meta/x", readOnly}, [2]string{"echo >" + tree + "/.git", readOnly})
		})
		t.Run("directories on the way", func(t *testing.T) { // rows 12, 14 and 36
			// What may be renamed must not be what leads to something protected: it
			// would be missing at its place afterwards, and somebody else's there.
			const busy = "Device or resource busy"
			outer := filepath.Join(m.base, "outer")
			m.mkdir(filepath.Join(outer, "deep/meta"))
			m.mkdir(filepath.Join(outer, "way/ws/.git"))
			m.mkdir(filepath.Join(outer, "some/secret"))
			m.write(filepath.Join(outer, ".git"), "gitdir: deep/meta\n")
			sandbox := m.policy("restricted", special("root", "read"), at(outer, "write"), at(outer+"/way/ws", "write"), at(outer+"/some/secret", "deny"))
			for _, name := range []string{"deep", "way", "way/ws", "some"} {
				m.says(sandbox, [2]string{"mv " + outer + "/" + name + " " + outer + "/moved", busy})
			}
			m.says(sandbox,
				[2]string{"touch " + outer + "/way/x", "done"}, [2]string{"mv " + outer + "/way/x " + outer + "/way/y", "done"},
				[2]string{"mv " + outer + "/way/y " + outer + "/y", "done"}, [2]string{"touch " + outer + "/way/ws/.git/x", readOnly})
			m.clean(outer, outer+"/way", outer+"/way/ws")
		})
		t.Run("links", func(t *testing.T) { // row 13
			for name, target := range map[string]string{"live": m.outside, "dangling": "/none"} {
				tree := filepath.Join(m.base, name)
				m.mkdir(tree)
				m.must(os.Symlink(target, filepath.Join(tree, ".git")))
				m.refuses(m.policy("restricted", special("root", "read"), at(tree, "write")), -32602, "crosses writable symlink "+tree+"/.git")
			}
			m.must(os.Symlink(m.outside, filepath.Join(m.ws, "trap")))
			m.refuses(m.workspaceWrite(project("trap", "write")), -32602, "crosses writable symlink")
			m.refuses(m.workspaceWrite(project("trap/x", "read")), -32602, "crosses writable symlink")
		})
		t.Run("TMPDIR", func(t *testing.T) { // row 47
			sandbox := m.policy("restricted", special("root", "read"), special("tmpdir", "write"))
			link := filepath.Join(m.base, "tmplink")
			m.must(os.Symlink(m.outside, link))
			for dir, want := range map[string]string{
				"/": readOnly, "outside": readOnly, file: readOnly, link: readOnly, m.outside: "done", "": readOnly,
			} {
				p := m.run(command{
					argv: []string{"/bin/sh", "-c", "touch " + m.outside + "/t 2>&1 && echo done"}, sandbox: sandbox,
					env: map[string]string{"TMPDIR": dir, "LC_ALL": "C"},
				})
				if got := m.written(p); !strings.Contains(got, want) {
					t.Errorf("TMPDIR=%s: %q, want %q", dir, got, want)
				}
			}
		})
	})
}

// TestDeniedOutside uses an entry that denies a file outside of the workspace, by a path
// that leads out of it. The server enforces the entry.
func TestDeniedOutside(t *testing.T) {
	everyUser(t, func(t *testing.T, m *machine) {
		m.start()
		for _, subpath := range []string{"../outside", "/etc", "dir/../../outside"} {
			m.refuses(m.workspaceWrite(project(subpath, "deny")), -32602, "leads out of the workspace")
		}
		m.says(m.workspaceWrite(project("../outside", "write")), [2]string{"touch " + m.outside + "/x", readOnly})
	})
}

// TestSharedLinks uses entries whose paths follow the same symbolic link, as those below
// /bin do on most machines.
func TestSharedLinks(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		m.must(unix.Symlink(m.outside, filepath.Join(m.base, "alias")))
		sandbox := m.policy("restricted", special("minimal", "read"), special("project_roots", "write"),
			at("/bin/sh", "read"), at(filepath.Join(m.base, "alias"), "read"), at(filepath.Join(m.base, "alias/file"), "read"))
		m.says(sandbox, [2]string{"cat " + filepath.Join(m.base, "alias/file"), "old"})
	})
}

// TestFileAsWorkspace uses a client's default policy with a file as the workspace.
func TestFileAsWorkspace(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		file := filepath.Join(m.ws, "file")
		sandbox := m.workspaceWrite()
		sandbox["workspaceRoots"] = []string{uri(file)}
		m.says(sandbox, [2]string{"echo new >file && cat file", "new"}, [2]string{"touch dir/x", "Read-only file system"})
	})
}

// TestRequireMoreThanNothing sends policies that allow everything to a server that
// requires a sandbox.
func TestRequireMoreThanNothing(t *testing.T) {
	m := newMachine(t, user{}, "require")
	m.refuses(m.policy("enabled", special("root", "write")), -32602, "this server starts nothing that may write everywhere; request a sandbox")
	m.refuses(m.policy("restricted", special("root", "write")), -32602, "this server starts nothing that may write everywhere; request a sandbox")
	m.refuses(object{"permissions": object{"type": "external", "network": "restricted"}, "windowsSandboxLevel": "disabled"}, -32602, "this server starts nothing that may write everywhere; request a sandbox")
	m.refuses(m.policy("enabled", special("root", "write"), at(m.ws, "write")), -32602, "this server starts nothing that may write everywhere; request a sandbox")
	m.says(m.policy("enabled", special("root", "write"), at(m.outside, "deny")), [2]string{"ls " + m.outside, "Permission denied"})
}
