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
			const busy = "busy"
			for name, target := range map[string]string{"live": m.outside, "dangling": "/none", "inner": "deep/meta"} {
				tree := filepath.Join(m.base, name)
				m.mkdir(filepath.Join(tree, "deep/meta"))
				m.must(os.Symlink(target, filepath.Join(tree, ".git")))
				m.must(os.Symlink("later", filepath.Join(tree, ".codex")))
				for _, sandbox := range []object{
					m.policy("restricted", special("root", "read"), at(tree, "write")),
					m.policy("restricted", special("root", "read"), at(tree, "write"), at(tree+"/.git", "read")),
				} {
					if m.means == "bubblewrap" {
						m.refuses(sandbox, -32602, "crosses writable symlink "+tree+"/.")
						continue
					}
					link := tree + "/.git"
					m.says(sandbox,
						[2]string{"touch " + tree + "/x", "done"}, [2]string{"readlink " + link, target},
						[2]string{"rm " + link, busy}, [2]string{"mv " + link + " " + tree + "/moved", busy}, [2]string{"ln -sfn /tmp " + link, busy},
						[2]string{"touch " + link + "/x", map[string]string{"live": readOnly, "dangling": "No such file", "inner": readOnly}[name]},
						[2]string{"touch " + tree + "/.codex/x", readOnly}, [2]string{"rm -r " + tree + "/later " + tree + "/.codex", busy})
					if name == "inner" {
						m.says(sandbox, [2]string{"mv " + tree + "/deep " + tree + "/moved", busy})
					}
				}
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

// TestMissingNamesReleased makes protected names writable that do not exist yet.
func TestMissingNamesReleased(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		fresh := filepath.Join(m.base, "fresh")
		m.mkdir(fresh)
		in := func(name string) string { return filepath.Join(fresh, name) }
		for name, sandbox := range map[string]object{
			"workspace": m.workspaceWrite(at(fresh, "write"), at(in(".git"), "write")),
			"everything": m.policy("restricted", special("root", "write"), at(m.outside, "deny"),
				at("/.git", "write"), at("/.agents", "write"), at("/.codex", "write"), at("/.aws", "write"), at(fresh, "write"), at(in(".git"), "write")),
		} {
			t.Run(name, func(*testing.T) {
				m.says(sandbox, [2]string{"ls -A " + fresh, ".codex"}, [2]string{"mkdir " + in(".git") + " && touch " + in(".git/config"), "done"},
					[2]string{"touch " + in(".git/HEAD"), "done"}, [2]string{"mkdir " + in(".codex"), "File exists"})
				m.says(m.workspaceWrite(at(fresh, "write")), [2]string{"touch " + in(".git/x"), readOnly})
				m.must(os.RemoveAll(in(".git")))
				// The other policy does not release it.
				m.says(m.workspaceWrite(at(fresh, "write")), [2]string{"mkdir " + in(".git"), "File exists"})
			})
		}
		m.clean(fresh)
	})
}

// TestApprovedByUser uses the policy of a command that a user approved although the
// profile denies files. The client sends it only to servers that announce that they keep
// the denied files and the devices.
func TestApprovedByUser(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		can := m.conn.Info.Capabilities
		if !can.LinuxApprovedRootWritePreservesRestrictions || !can.LinuxRootWritePreservesDevices ||
			!can.SandboxedFileStreaming || !can.CapabilityDiscoverySandbox {
			t.Errorf("the server announces %+v", can)
		}
		names := []string{".agents", ".aws", ".codex", ".git"}
		entries := []object{special("root", "write"), at(m.outside, "deny")}
		before := make(map[string]error)
		for _, name := range names {
			entries = append(entries, at("/"+name, "write"), at(filepath.Join(m.base, name), "write"))
			_, before[name] = os.Lstat("/" + name)
		}
		sandbox := m.policy("restricted", entries...)
		sandbox["sandboxOverride"] = "escalatedSandboxWithRestrictions"
		m.says(sandbox,
			[2]string{"touch " + m.base + "/written", "done"}, [2]string{"touch file .git/config", "done"},
			[2]string{"ls " + m.outside, "Permission denied"}, [2]string{"mv " + m.outside + " " + m.ws + "/moved", "busy"},
			[2]string{"echo x >/dev/null", "done"}, [2]string{"mknod " + m.ws + "/disk b 8 0", "not permitted"})
		p, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", "echo ready; read x"}, sandbox: sandbox})
		m.must(err)
		m.awaitOutput(p, "ready")
		for _, name := range names {
			if _, err := os.Lstat("/" + name); (err == nil) != (before[name] == nil) {
				t.Errorf("/%s was %v and is %v", name, before[name], err)
			}
		}
		m.must(m.call("process/terminate", object{"processId": id}, nil))
		m.await(p)
		read := func(path string) object { return object{"handleId": "h", "path": uri(path), "sandbox": sandbox} }
		m.wants(-32600, "permission denied (os error 13)", "fs/open", read(m.outside+"/file"))
		m.wants(0, "", "fs/open", read(m.ws+"/file"))
		m.must(m.call("fs/close", object{"handleId": "h"}, nil))
		sandbox["sandboxOverride"] = "other"
		m.refuses(sandbox, -32602, "sandboxOverride")
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
