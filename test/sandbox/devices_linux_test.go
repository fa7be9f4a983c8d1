package sandbox_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// devices calls f with every device of the machine.
func devices(f func(path string) error) error {
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := f("/dev/" + name); err != nil {
			return err
		}
	}
	return nil
}

// deviceAttacks are attempts with /dev/null as standard input. They change nothing even if
// they succeed. A user who does not own a device gets EPERM.
var deviceAttacks = []attempt{
	{"0 write /dev/null", "allowed", func(*attacker) error { return os.WriteFile("/dev/null", []byte("x"), 0) }},
	{"0 read /dev/zero", "allowed", func(*attacker) error {
		f, err := os.Open("/dev/zero")
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.Read(make([]byte, 8))
		return err
	}},
	{"0 read standard input", "allowed", func(*attacker) error {
		_, err := unix.Read(0, make([]byte, 8))
		return err
	}},
	{"50 mode of a device", "EROFS EPERM", func(*attacker) error {
		return devices(func(path string) error { return unix.Chmod(path, 0o666) })
	}},
	{"50 owner of a device", "EROFS EPERM", func(*attacker) error {
		return devices(func(path string) error { return unix.Lchown(path, os.Geteuid(), os.Getegid()) })
	}},
	{"50 times of a device", "EROFS EPERM", func(*attacker) error {
		now := unix.NsecToTimeval(time.Now().UnixNano())
		return devices(func(path string) error { return unix.Utimes(path, []unix.Timeval{now, now}) })
	}},
	{"50 attribute of a device", "EROFS EPERM", func(*attacker) error {
		return devices(func(path string) error { return unix.Setxattr(path, "trusted.x", nil, 0) })
	}},
	{"50 remove a device", "EROFS EBUSY", func(*attacker) error { return unix.Unlink("/dev/null") }},
	{"50 mode of standard input", "EROFS EPERM", func(*attacker) error { return unix.Fchmod(0, 0o666) }},
	{"50 mode of standard input by its name", "EROFS EPERM", func(*attacker) error { return unix.Chmod("/proc/self/fd/0", 0o666) }},
	{"50 times of standard input", "EROFS EPERM", func(*attacker) error {
		now := unix.NsecToTimeval(time.Now().UnixNano())
		return unix.Futimes(0, []unix.Timeval{now, now})
	}},
}

func init() { attacks["terminal"] = terminalAttacks }

// terminalAttacks are attempts with a terminal as standard streams, which belongs to the
// attacker's user.
var terminalAttacks = []attempt{
	{"50 mode of the terminal", "EROFS", func(*attacker) error { return unix.Fchmod(0, 0o666) }},
	{"50 mode of the terminal by standard output", "EROFS", func(*attacker) error { return unix.Fchmod(1, 0o666) }},
	{"50 mode of the terminal by standard error", "EROFS", func(*attacker) error { return unix.Fchmod(2, 0o666) }},
	{"50 mode of the terminal by its name", "EROFS", func(*attacker) error { return unix.Chmod("/dev/console", 0o666) }},
	{"50 mode of the terminal by a descriptor", "EROFS", func(*attacker) error { return unix.Chmod("/proc/self/fd/0", 0o666) }},
	{"50 owner of the terminal", "EROFS", func(*attacker) error { return unix.Fchown(0, os.Geteuid(), os.Getegid()) }},
	{"0 open the terminal", "allowed", func(*attacker) error { return write("/dev/tty") }},
	{"0 size of the terminal", "allowed", func(*attacker) error {
		_, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
		return err
	}},
}

// TestTerminalNode checks that a command cannot let other users use its terminal.
func TestTerminalNode(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		if m.means == "bubblewrap" && m.user.uid != 0 {
			t.Skip("an ordinary user cannot protect what bubblewrap has mounted")
		}
		p := m.run(command{tty: true, sandbox: m.workspaceWrite(), argv: []string{m.program, "attack", "terminal", m.base, "0", "0"}})
		judge(t, terminalAttacks, m.written(p))
	})
}

// TestDevices checks that a command can use the machine's devices but not change them
// (row 50).
func TestDevices(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		for name, sandbox := range map[string]object{
			"read-only": m.policy("restricted", special("root", "read")),
			"workspace": m.workspaceWrite(),
			"minimal":   m.policy("restricted", special("minimal", "read"), special("project_roots", "write"), at(m.base, "read")),
			"writable":  m.policy("enabled", special("root", "write"), at(m.outside, "read")),
		} {
			p := m.run(command{null: true, sandbox: sandbox, argv: []string{m.program, "attack", "devices", m.base, "0", "0"}})
			output := m.written(p)
			judge(t, deviceAttacks, output)
			if m.user.uid == 0 && os.Geteuid() == 0 && strings.Contains(output, "EPERM") {
				t.Errorf("%s: nothing but the owner keeps root from devices: %s", name, output)
			}
		}
	})
}

// TestSharedMemory asks with policies that let everything be read for a file in the machine's
// /dev. Commands have a /dev of their own, which does not show it.
func TestSharedMemory(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		file, err := os.CreateTemp("/dev/shm", "")
		if err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { _ = os.Remove(file.Name()) })
		_, err = file.WriteString("memory of another program")
		m.must(err)
		m.must(file.Close())
		m.own(file.Name())
		link := filepath.Join(m.ws, "link")
		m.must(os.Symlink(file.Name(), link))
		for name, sandbox := range map[string]object{"read": m.policy("enabled", special("root", "read")), "workspace": m.workspaceWrite()} {
			for _, path := range []string{file.Name(), link} {
				for method, more := range map[string]object{
					"fs/readFile": {"followSymlinks": true}, "fs/open": {"handleId": "h"}, "fs/watch": {"watchId": "w"},
				} {
					params := object{"path": uri(path), "sandbox": sandbox}
					maps.Copy(params, more)
					if err := m.call(method, params, nil); err == nil {
						t.Errorf("%s: %s answers for %s", name, method, path)
					}
				}
			}
		}
	})
}

// takeTerminals opens more pseudo-terminals than one sandbox gets.
func takeTerminals() {
	for n := range 300 {
		if _, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
			fmt.Println(n, "terminals,", err)
			return
		}
	}
}

// TestTerminalsTaken runs a command that opens as many pseudo-terminals as it can. It leaves
// some to other sandboxes.
func TestTerminalsTaken(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		if m.means == "bubblewrap" {
			t.Skip("bubblewrap mounts them without a limit")
		}
		p := m.run(command{argv: []string{m.program, "terminals"}, sandbox: m.workspaceWrite()})
		m.contains("it opens", m.written(p), "256 terminals, no space left on device")
	})
}
