package sandbox_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func init() { attacks["setID"] = setIDAttacks }

// made closes the descriptor that a call returned, and returns the call's error.
func made(fd int, err error) error {
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// setIDAttacks try to make programs that run as the server's user.
var setIDAttacks = []attempt{
	{"49 chmod", "EPERM", func(a *attacker) error { return unix.Chmod(a.in("file"), 0o4755) }},
	{"49 chmod of the group", "EPERM", func(a *attacker) error { return unix.Chmod(a.in("file"), 0o2755) }},
	{"49 fchmod", "EPERM", func(a *attacker) error {
		fd, err := unix.Open(a.in("file"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Fchmod(fd, 0o4755)
	}},
	{"49 fchmodat", "EPERM", func(a *attacker) error { return unix.Fchmodat(unix.AT_FDCWD, a.in("file"), 0o4755, 0) }},
	{"49 fchmodat2", "EPERM", func(a *attacker) error {
		return unix.Fchmodat(unix.AT_FDCWD, a.in("file"), 0o4755, unix.AT_SYMLINK_NOFOLLOW)
	}},
	{"49 create", "EPERM", func(a *attacker) error {
		return made(unix.Open(a.in("set1"), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o4755))
	}},
	{"49 create without a name", "EPERM", func(a *attacker) error {
		return made(unix.Open(a.ws, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o4755))
	}},
	{"49 openat2", "ENOSYS", func(a *attacker) error {
		return made(unix.Openat2(unix.AT_FDCWD, a.in("set2"), &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY | unix.O_CLOEXEC, Mode: 0o4755}))
	}},
	{"49 mknod", "EPERM", func(a *attacker) error { return unix.Mknod(a.in("set3"), unix.S_IFREG|0o4755, 0) }},
	{"0 chmod", "allowed", func(a *attacker) error { return unix.Chmod(a.in("file"), 0o1755) }},
	{"0 create", "allowed", func(a *attacker) error {
		return made(unix.Open(a.in("plain"), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o755))
	}},
}

// TestSetID checks that a confined command cannot leave a set-user-ID or set-group-ID
// program of the server's user behind (row 49).
func TestSetID(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		m.must(os.Chmod(m.ws, 0o755))
		for _, network := range []string{"restricted", "enabled"} {
			sandbox := m.workspaceWrite()
			sandbox["permissions"].(object)["network"] = network
			m.attack(t, "setID", m.program, sandbox, false, 0)
		}
		original, ours := filepath.Join(m.outside, "file"), filepath.Join(m.ws, "copy")
		m.must(os.Chmod(original, 0o755|os.ModeSetuid|os.ModeSetgid))
		m.wants(0, "", "fs/copy", object{"sourcePath": uri(original), "destinationPath": uri(ours), "recursive": false, "sandbox": m.workspaceWrite()})
		for _, name := range []string{"file", "copy", "plain"} {
			info, err := os.Lstat(filepath.Join(m.ws, name))
			m.must(err)
			if info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 || info.Mode().Perm() != 0o755 {
				t.Errorf("%s is %v", name, info.Mode())
			}
		}
	})
}
