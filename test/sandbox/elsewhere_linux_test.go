package sandbox_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// becomeMounted mounts the directory base once more at shown, and parts of it below parts,
// in a mount namespace of its own, and executes argv there as another user.
func becomeMounted(base, shown, id string, argv []string) error {
	runtime.LockOSThread()
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		return err
	}
	parts := shown + "-parts"
	for source, point := range map[string]string{
		base: shown, base + "/own": parts + "/own", base + "/token": parts + "/token", base + "/outside/dir": parts + "/dir",
		base + "/home/.config": parts + "/config", base + "/home/.local/state/exec-fleet/machine": parts + "/machine",
	} {
		if err := unix.Mount(source, point, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s: %w", point, err)
		}
	}
	uid, _ := strconv.Atoi(id)
	if err := errors.Join(unix.Setgroups(nil), unix.Setresgid(uid, uid, uid), unix.Setresuid(uid, uid, uid)); err != nil {
		return err
	}
	return unix.Exec(argv[0], argv, os.Environ())
}

// mountedElsewhere runs a test with a server for which everything is mounted at another place,
// too. The test gets that place, and a directory with mounts of parts.
func mountedElsewhere(t *testing.T, test func(t *testing.T, m *machine, shown, parts string)) {
	testkit.System(t, testkit.Root)
	for _, u := range users() {
		for _, means := range []string{"userNamespace", "namespaces", "bubblewrap"} {
			t.Run(u.name+"/"+means, func(t *testing.T) {
				t.Parallel()
				m := prepareMachine(t, u, means)
				if means == "bubblewrap" && m.bubblewrap == "" {
					testkit.Need(t, "bwrap")
				}
				shown := m.base + "-shown"
				parts := shown + "-parts"
				for _, dir := range []string{
					shown, parts + "/own", parts + "/dir", parts + "/config", parts + "/machine",
					m.base + "/own", m.base + "/ws/deep", m.base + "/home/.config/exec-server", m.base + "/home/.local/state/exec-fleet/machine",
				} {
					m.must(os.MkdirAll(dir, 0o755))
				}
				t.Cleanup(func() { _, _ = os.RemoveAll(parts), os.RemoveAll(shown) })
				m.write(parts+"/token", "")
				for _, name := range []string{"token", "own/token", "own/certificate", "ws/deep/key", "state/journal", "home/.config/exec-server/x", "home/.local/state/exec-fleet/machine/key"} {
					m.write(filepath.Join(m.base, name), "secret")
				}
				m.own(m.base)
				m.own(parts)
				m.inside, m.env = &syscall.SysProcAttr{}, []string{"HOME=" + m.base + "/home"}
				m.through = []string{"mounted", m.base, shown, strconv.Itoa(u.uid)}
				m.start()
				if m.conn.Info.Sandbox.Means != means {
					t.Skip(m.conn.Info.Sandbox.Reason)
				}
				test(t, m, shown, parts)
			})
		}
	}
}

// TestSecretsMountedElsewhere reads and replaces the server's secrets where their directories
// are mounted a second time, as by a workspace that shows the home directory.
func TestSecretsMountedElsewhere(t *testing.T) {
	mountedElsewhere(t, func(t *testing.T, m *machine, shown, parts string) {
		secrets := []string{
			shown + "/token", shown + "/own/token", shown + "/ws/deep/key", shown + "/state/journal",
			shown + "/home/.config/exec-server/x", shown + "/home/.local/state/exec-fleet/machine/key",
			parts + "/own/token", parts + "/token", parts + "/config/exec-server/x", parts + "/machine/key",
			m.base + "/home/.config/exec-server/x", m.base + "/home/.local/state/exec-fleet/machine/key",
		}
		for name, sandbox := range map[string]object{
			"read": m.policy("restricted", special("root", "read")), "workspace": m.workspaceWrite(), "named": m.workspaceWrite(at(parts+"/own/token", "write")),
			"shown": m.workspaceWrite(at(shown, "write"), at(parts, "write")), "write": m.policy("enabled", special("root", "write"), at(m.outside, "read")),
		} {
			for _, file := range secrets {
				script := fmt.Sprintf("cat %[1]s; echo mine > %[1]s; rm -f %[1]s; mv %[1]s %[1]s.old; ln %[1]s $TMPDIR/x; mv ${0%%/*} ${0%%/*}.old; true", file)
				p := m.run(command{argv: []string{"/bin/sh", "-c", script + " 2>&1", file}, sandbox: sandbox})
				if got := m.written(p); strings.Contains(got, "secret") {
					t.Errorf("%s: a command reads %s: %q", name, file, got)
				}
				if m.call("fs/readFile", object{"path": uri(file), "sandbox": sandbox}, nil) == nil {
					t.Errorf("%s: fs/readFile shows %s", name, file)
				}
			}
			for _, file := range secrets { // as the server sees them
				m.says(nil, [2]string{"cat " + file, "secret"})
			}
			if t.Failed() {
				return
			}
		}
	})
}

// TestProtectedElsewhere has entries of a policy, and protected names, at a second mount.
func TestProtectedElsewhere(t *testing.T) {
	mountedElsewhere(t, func(t *testing.T, m *machine, shown, parts string) {
		const denied = "Permission denied"
		m.says(m.workspaceWrite(at(shown, "write")),
			[2]string{"echo x > " + shown + "/ws/.git/config", "Read-only file system"}, [2]string{"mkdir " + shown + "/ws/.codex", "File exists"},
			[2]string{"touch " + shown + "/ws/.codex/x", "Read-only file system"}, [2]string{"mv " + shown + "/ws " + shown + "/moved", "busy"},
			[2]string{"touch " + shown + "/ws/x", "done"})
		m.says(m.workspaceWrite(at(m.outside, "deny")), [2]string{"cat " + shown + "/outside/file", denied}, [2]string{"ls " + parts + "/dir", denied})
		m.says(m.workspaceWrite(at(m.outside, "deny"), at(parts+"/dir", "read")), [2]string{"cat " + parts + "/dir/file", "old"})
		m.clean(m.ws)
	})
}

// TestSecretWithManyNames has a secret with a second name, which nothing could hide.
func TestSecretWithManyNames(t *testing.T) {
	everyUser(t, func(t *testing.T, m *machine) {
		token, other := filepath.Join(m.base, "token"), filepath.Join(m.outside, "other")
		m.write(token, "secret")
		m.must(os.Link(token, other))
		m.start()
		m.refuses(m.workspaceWrite(), -32602, "hide "+token+" from commands in sandboxes: the file has 2 names (hard links)")
		m.must(os.Remove(other))
		m.says(m.workspaceWrite(), [2]string{"cat " + token, "Permission denied"})
	})
}

// TestPlantedSecret has configured files that are missing where a command may write. What the
// command creates there would decide who may connect.
func TestPlantedSecret(t *testing.T) {
	everyUser(t, func(t *testing.T, m *machine) {
		for _, name := range []string{"deep/key", "known/keys"} {
			path := filepath.Join(m.ws, name)
			m.mkdir(filepath.Dir(path))
			m.write(filepath.Join(filepath.Dir(path), "other"), "")
			if m.cmd == nil {
				m.start()
			}
			m.refuses(m.workspaceWrite(), -32602, "cannot protect "+path+", by which the server knows its clients, because "+path+" does not exist")
			m.says(m.policy("restricted", special("root", "read")), [2]string{"ls", "done"})
			m.write(path, "text")
			m.says(m.workspaceWrite(), [2]string{"rm " + path, "busy"})
		}
	})
}

// TestSecretOverLink has a secret whose path leads over a link and back, so that its text names
// another place.
func TestSecretOverLink(t *testing.T) {
	everyUser(t, func(t *testing.T, m *machine) {
		m.mkdir(m.base + "/real/place")
		m.must(os.Symlink("real/place", m.base+"/link"))
		m.write(m.base+"/real/key", "secret")
		m.start()
		sandbox := m.workspaceWrite()
		m.says(sandbox, [2]string{"cat " + m.base + "/real/key", "Permission denied"}, [2]string{"cat " + m.base + "/link/../key", "Permission denied"})
		if m.call("fs/readFile", object{"path": uri(m.base + "/real/key"), "sandbox": sandbox}, nil) == nil {
			t.Error("fs/readFile shows the secret")
		}
	})
}
