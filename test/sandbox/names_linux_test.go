package sandbox_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// foreigner is neither the server's user nor root.
const foreigner = 61235

// TestForeignNames lets another user create protected names in a directory that everybody
// may write. The server still starts commands.
func TestForeignNames(t *testing.T) {
	testkit.System(t, testkit.Root)
	everywhere(t, func(t *testing.T, m *machine) {
		shared := m.shared()
		in := func(name string) string { return filepath.Join(shared, name) }
		own := func(name string) { m.must(os.Lchown(in(name), foreigner, foreigner)) }
		sandboxes := []object{m.workspaceWrite(at(shared, "write")), m.workspaceWrite(at(shared, "write"))}
		sandboxes[1]["workspaceRoots"] = []string{uri(m.ws), uri(shared)}
		works := func(what string) {
			t.Helper()
			for _, sandbox := range sandboxes {
				if _, _, err := m.begin(command{argv: []string{"/bin/true"}, sandbox: sandbox}); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				m.says(sandbox, [2]string{"touch " + in("x"), "done"}, [2]string{"touch " + m.outside + "/x", readOnly})
			}
		}
		m.must(os.Symlink(m.outside, in("link")))
		own("link")
		for _, name := range []string{".aws", ".codex", ".agents", ".git"} {
			m.must(os.Symlink(m.outside, in(name)))
			own(name)
		}
		works("links")
		for _, name := range []string{".aws", ".codex", ".agents", ".git"} {
			m.must(os.Remove(in(name)))
		}
		for _, name := range []string{".aws", ".codex"} { // one that can be looked into, one that cannot
			m.must(os.Mkdir(in(name), 0o700))
			own(name)
		}
		m.must(os.Chmod(in(".codex"), 0o555))
		locked, err := os.Open(in(".codex"))
		m.must(err)
		defer locked.Close()
		m.must(unix.Flock(int(locked.Fd()), unix.LOCK_EX))
		m.must(unix.Mkfifo(in(".agents"), 0o666))
		own(".agents")
		m.must(os.WriteFile(in(".git"), []byte("gitdir: link/meta\n"), 0o644))
		own(".git")
		works("a locked directory, a FIFO, and a .git that leads over a link")
		m.must(os.Remove(in(".git"))) // root may be kept from writing it (fs.protected_regular)
		m.must(os.WriteFile(in(".git"), []byte("gitdir: "+m.ws+"/dir\n"), 0o644))
		own(".git")
		m.says(sandboxes[0], [2]string{"touch " + m.ws + "/dir/x", "done"})
		if _, err := os.Lstat(in(".codex")); err != nil {
			t.Error("another user's directory is removed: ", err)
		}
	})
}

// shared makes a directory like /tmp.
func (m *machine) shared() string {
	shared := filepath.Join(m.base, "shared")
	m.must(os.Mkdir(shared, 0o700))
	m.must(os.Chmod(shared, 0o777|os.ModeSticky))
	return shared
}

// TestForeignLocks lets another user lock the directories that the server makes for
// missing names.
func TestForeignLocks(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		shared := m.shared()
		sandbox := m.workspaceWrite(at(shared, "write"))
		first, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", "echo ready; read x"}, sandbox: sandbox})
		m.must(err)
		m.awaitOutput(first, "ready")
		var locked []*os.File
		for _, name := range []string{".codex", ".agents", ".aws"} {
			dir, err := os.Open(filepath.Join(shared, name))
			m.must(err)
			defer dir.Close()
			m.must(unix.Flock(int(dir.Fd()), unix.LOCK_SH)) // which keeps it from being removed
			locked = append(locked, dir)
		}
		m.must(m.call("process/terminate", object{"processId": id}, nil))
		m.await(first)
		for _, dir := range locked {
			eventually(t, "the server keeps its lock", func() bool { return unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil })
		}
		m.says(sandbox, [2]string{"touch " + shared + "/x", "done"}, [2]string{"touch " + shared + "/.codex/x", readOnly})
	})
}

// TestForeignFlips lets another user create and remove names as fast as possible.
func TestForeignFlips(t *testing.T) {
	testkit.System(t, testkit.Root)
	everyUser(t, func(t *testing.T, m *machine) {
		m.start()
		shared := m.shared()
		m.must(os.Chmod(m.base, 0o711))
		script := "cd " + shared + " || exit; while :; do for n in .aws .git; do " +
			"mkdir $n; rmdir $n; ln -s / $n; rm $n; echo 'gitdir: ../ws' >$n; rm $n; done; done 2>/dev/null"
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: foreigner, Gid: foreigner}}
		m.must(cmd.Start())
		defer func() {
			m.must(cmd.Process.Kill())
			_ = cmd.Wait()
		}()
		eventually(t, "nothing flips", func() bool {
			_, err := os.Lstat(filepath.Join(shared, ".git"))
			return err == nil
		})
		for range 40 {
			p, _, err := m.begin(command{argv: []string{"/bin/sh", "-c", "touch x && echo done"}, sandbox: m.workspaceWrite(at(shared, "write"))})
			if err != nil {
				t.Fatal(err)
			}
			m.await(p)
			m.contains("a command", m.written(p), "done")
		}
	})
}

// TestEmptyDirectoryStays checks that the server does not remove an empty directory that
// looks like one of its own.
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
