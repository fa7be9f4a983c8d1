package sandbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func read(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func list(path string) error {
	_, err := os.ReadDir(path)
	return err
}

func stat(path string) error {
	var st unix.Stat_t
	return unix.Stat(path, &st)
}

// again opens what a path leads to through a descriptor that gives no right to it.
func again(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return read(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// deniedAttacks are attempts in a sandbox that may read everything except the directory
// outside and the files *.env.
var deniedAttacks = []attempt{
	{"0 read what is beside", "allowed", func(a *attacker) error { return read(a.in("dir/../file")) }},
	{"36 read a file", "EACCES", func(a *attacker) error { return read(a.out("file")) }},
	{"36 read a file deep below", "EACCES", func(a *attacker) error { return read(a.out("dir/file")) }},
	{"36 list", "EACCES", func(a *attacker) error { return list(a.outside) }},
	{"36 list below", "EACCES", func(a *attacker) error { return list(a.out("dir")) }},
	{"36 stat", "EACCES", func(a *attacker) error { return stat(a.out("file")) }},
	{"36 stat of what is not there", "EACCES", func(a *attacker) error { return stat(a.out("none")) }},
	{"36 enter", "EACCES", func(a *attacker) error { return unix.Chdir(a.outside) }},
	{"36 create", "EACCES EROFS", func(a *attacker) error { return create(a.out("new")) }},
	{"36 execute", "EACCES", func(a *attacker) error { return unix.Exec(a.out("file"), nil, nil) }},
	{"36 by an alias", "EACCES", func(a *attacker) error { return read(filepath.Join(a.base, "alias/file")) }},
	{"36 list by an alias", "EACCES", func(a *attacker) error { return list(filepath.Join(a.base, "alias/")) }},
	{"36 stat by an alias", "EACCES", func(a *attacker) error { return stat(filepath.Join(a.base, "alias/file")) }},
	{"36 by a link of its own", "EACCES", func(a *attacker) error { return read(a.link("mine", a.outside) + "/file") }},
	{"36 by a link to a file", "EACCES", func(a *attacker) error { return read(a.link("mine", a.in("dir/secret.env"))) }},
	{"36 by ..", "EACCES", func(a *attacker) error { return read(a.ws + "/../outside/file") }},
	{"36 by /proc/self/root", "EACCES", func(a *attacker) error { return read("/proc/self/root" + a.out("file")) }},
	{"36 by /proc/self/cwd", "EACCES", func(a *attacker) error { return read("/proc/self/cwd/../outside/file") }},
	{"36 by /proc/1/root", "EACCES", func(a *attacker) error { return read("/proc/1/root" + a.out("file")) }},
	{"36 by a descriptor", "EACCES", func(a *attacker) error { return again(a.outside) }},
	{"36 pattern: read", "EACCES", func(a *attacker) error { return read(a.in("dir/secret.env")) }},
	{"36 pattern: read at the top", "EACCES", func(a *attacker) error { return read(a.in("top.env")) }},
	{"36 pattern: write", "EACCES EROFS", func(a *attacker) error { return write(a.in("dir/secret.env")) }},
	{"36 pattern: truncate", "EACCES EROFS", func(a *attacker) error { return unix.Truncate(a.in("dir/secret.env"), 0) }},
	{"36 pattern: by a descriptor", "EACCES", func(a *attacker) error { return again(a.in("dir/secret.env")) }},
	{"36 pattern: chmod", "EROFS", func(a *attacker) error { return unix.Chmod(a.in("dir/secret.env"), 0o644) }},
	{"36 pattern: hard link", "EXDEV", func(a *attacker) error { return unix.Link(a.in("dir/secret.env"), a.in("got")) }},
	{"36 pattern: rename", "EBUSY", func(a *attacker) error { return unix.Rename(a.in("dir/secret.env"), a.in("got")) }},
	{"36 pattern: rename what it is in", "EBUSY", func(a *attacker) error {
		// The kernel moves mounts with the directory: it may be called otherwise.
		if err := unix.Rename(a.in("dir"), a.in("moved")); err != nil {
			return err
		}
		defer unix.Rename(a.in("moved"), a.in("dir"))
		if err := read(a.in("moved/secret.env")); err == unix.EACCES {
			return unix.EBUSY
		}
		return nil
	}},
	{"36 pattern: remove", "EBUSY", func(a *attacker) error { return unix.Unlink(a.in("dir/secret.env")) }},
	{"36 pattern: size", "allowed", func(a *attacker) error {
		var st unix.Stat_t
		if err := unix.Stat(a.in("dir/secret.env"), &st); err != nil || st.Size != 0 {
			return fmt.Errorf("%d bytes, %v", st.Size, err)
		}
		return nil
	}},
	{"36 missing: make", "EEXIST EROFS", func(a *attacker) error { return unix.Mkdir(a.in("hidden"), 0o755) }},
	{"36 missing: make below", "EACCES EROFS", func(a *attacker) error { return create(a.in("hidden/deep")) }},
}

// TestDenied checks that a command cannot read files that a policy denies (row 36).
func TestDenied(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		m.write(filepath.Join(m.ws, "dir/secret.env"), "secret")
		m.write(filepath.Join(m.ws, "top.env"), "secret")
		m.must(os.Symlink(m.outside, filepath.Join(m.base, "alias")))
		// A policy denies names. A file that has another one, which only somebody
		// outside could make, has that one still.
		m.must(os.Link(filepath.Join(m.ws, "dir/secret.env"), filepath.Join(m.ws, "also.env")))
		m.must(os.Link(filepath.Join(m.ws, "dir/secret.env"), filepath.Join(m.ws, "other")))
		before := m.snapshot(m.outside)
		for _, network := range []string{"restricted", "enabled"} {
			sandbox := m.workspaceWrite(at(m.outside, "deny"), glob("**/*.env"), project("hidden/deep", "deny"))
			sandbox["permissions"].(object)["network"] = network
			m.attack(t, "denied", m.program, sandbox, network == "enabled", 0)
			m.says(sandbox, [2]string{"cat also.env", "Permission denied"}, [2]string{"cat other", "secret"})
		}
		if after := m.snapshot(m.outside); after != before {
			t.Errorf("the attacks have left\n%s\nof\n%s", after, before)
		}
		if text, err := os.ReadFile(filepath.Join(m.ws, "dir/secret.env")); string(text) != "secret" {
			t.Errorf("%q, %v", text, err)
		}
		m.clean(m.ws)
	})
}

// hiddenAttacks are attempts in a sandbox that may read only the workspace and the files
// that programs need to run.
var hiddenAttacks = []attempt{
	{"0 read the workspace", "allowed", func(a *attacker) error { return read(a.in("file")) }},
	{"0 read what programs need", "allowed", func(*attacker) error { return read("/bin/sh") }},
	{"37 home", "ENOENT", func(*attacker) error { return stat("/home") }},
	{"37 home of root", "ENOENT", func(*attacker) error { return stat("/root") }},
	{"37 file in the server's home", "ENOENT", func(a *attacker) error { return read(filepath.Join(a.base, ".profile")) }},
	{"37 what is in the server's home", "allowed", func(a *attacker) error { return only(a.base, "ws") }},
	{"37 what is around it", "allowed", func(a *attacker) error { return only(filepath.Dir(a.base), filepath.Base(a.base)) }},
	{"37 another workspace", "ENOENT", func(a *attacker) error { return list(a.outside) }},
	{"37 file of another workspace", "ENOENT", func(a *attacker) error { return read(a.out("file")) }},
	{"37 by ..", "ENOENT", func(a *attacker) error { return read(a.ws + "/../outside/file") }},
	{"37 by a link", "ENOENT", func(a *attacker) error { return read(a.link("mine", a.outside) + "/file") }},
	{"37 by /proc/self/root", "ENOENT", func(a *attacker) error { return read("/proc/self/root" + a.out("file")) }},
	{"37 by /proc/1/root", "ENOENT EACCES", func(a *attacker) error { return read("/proc/1/root" + a.out("file")) }},
	{"37 by /proc/1/cwd", "ENOENT EACCES", func(a *attacker) error { return list("/proc/1/cwd") }},
	{"37 directory of the server's program", "ENOENT", func(a *attacker) error { return list(filepath.Join(a.base, "bin")) }},
	{"37 the server's program", "ENOENT", func(a *attacker) error { return read(filepath.Join(a.base, "program")) }},
	{"37 the launcher's program", "EACCES", func(*attacker) error { return read("/proc/1/exe") }},
	{"37 the server's notes", "ENOENT", func(a *attacker) error { return list(filepath.Join(a.base, "state")) }},
	{"37 environment of the server", "ENOENT", func(a *attacker) error { return read(fmt.Sprintf("/proc/%d/environ", a.serverPid)) }},
	{"37 command line of the server", "ENOENT", func(a *attacker) error { return read(fmt.Sprintf("/proc/%d/cmdline", a.serverPid)) }},
	{"37 environment of the launcher", "EACCES", func(*attacker) error { return read("/proc/1/environ") }},
	{"37 /tmp", "ENOENT", func(*attacker) error { return list("/tmp") }},
	{"37 /var/log", "ENOENT", func(*attacker) error { return list("/var/log") }},
	{"37 /sys", "ENOENT", func(*attacker) error { return list("/sys") }},
	{"37 /run", "ENOENT", func(*attacker) error { return list("/run") }},
	{"37 create beside", "EROFS", func(a *attacker) error { return create(filepath.Join(a.base, "new")) }},
	{"37 create at the top", "EROFS", func(*attacker) error { return create("/new") }},
}

// only checks that a directory has no entry besides name.
func only(dir, name string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() != name }) {
		return fmt.Errorf("%v", entries)
	}
	return nil
}

// TestHidden checks that a command cannot read files that a policy does not allow
// (row 37).
func TestHidden(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		self, err := os.ReadFile("/proc/self/exe")
		m.must(err)
		program := filepath.Join(m.ws, "attacker")
		m.executable(program, self)
		m.write(filepath.Join(m.base, ".profile"), "secret")
		m.mkdir(filepath.Join(m.base, "bin"))
		for _, network := range []string{"restricted", "enabled"} {
			sandbox := m.policy(network, special("minimal", "read"), special("project_roots", "write"))
			for _, tty := range []bool{false, true} {
				m.attack(t, "hidden", program, sandbox, tty, 0)
			}
		}
		m.clean(m.ws)
	})
}

// TestMovedParents checks that a command cannot move a directory that holds a protected
// file, which would unprotect the file for the next command.
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

// TestLockedDirectory uses a policy that denies a file in a directory without
// permissions.
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

// TestDeniedInProc checks that a policy can deny files in /proc, although the sandbox has
// its own /proc.
func TestDeniedInProc(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		m.says(m.workspaceWrite(at("/proc/cpuinfo", "deny"), at("/proc/sys", "deny")),
			[2]string{"cat /proc/cpuinfo", "Permission denied"}, [2]string{"ls /proc/sys", "Permission denied"}, [2]string{"cat /proc/version", "Linux"})
		m.says(m.policy("restricted", special("minimal", "read"), special("project_roots", "write"), at("/proc", "deny"), at("/dev/shm", "deny")),
			[2]string{"ls /proc", "Permission denied"}, [2]string{"ls /dev/shm", "Permission denied"})
		m.says(m.workspaceWrite(at("/proc", "deny")), [2]string{"ls /proc", "Permission denied"})
	})
}
