package sandbox_test

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func init() { attacks["fifo"] = fifoAttacks }

// openFIFO opens a FIFO without waiting for the other end.
func openFIFO(path string, flags int) error {
	return made(unix.Open(path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0))
}

var fifoAttacks = []attempt{
	{"0 write one inside", "allowed", func(a *attacker) error { return openFIFO(a.in("fifo"), unix.O_WRONLY) }},
	{"0 read one outside", "allowed", func(a *attacker) error { return openFIFO(a.out("fifo"), unix.O_RDONLY) }},
	{"0 rename between directories", "allowed", func(a *attacker) error {
		if err := create(a.in("moving")); err != nil {
			return err
		}
		return unix.Rename(a.in("moving"), a.in("dir/moved"))
	}},
	{"0 link between directories", "allowed", func(a *attacker) error { return unix.Link(a.in("file"), a.in("dir/linked")) }},
	{"0 write what this program owns in /proc", "allowed", func(*attacker) error {
		if os.Geteuid() == 0 {
			return nil // for root it is read-only
		}
		return write("/proc/self/comm")
	}},
	{"0 write to a device", "allowed", func(*attacker) error { return write("/dev/null") }},
	{"0 open its output again", "allowed", func(*attacker) error { return write("/dev/stdout") }},
	{"0 open its terminal again", "allowed", func(*attacker) error {
		if _, err := unix.IoctlGetTermios(0, unix.TCGETS); err != nil {
			return nil // there is none
		}
		return write("/dev/tty")
	}},
	{"50 write one outside", "EACCES", func(a *attacker) error { return openFIFO(a.out("fifo"), unix.O_WRONLY) }},
	{"50 write and read one outside", "EACCES", func(a *attacker) error { return openFIFO(a.out("fifo"), unix.O_RDWR) }},
	{"50 through a link", "EACCES", func(a *attacker) error { return openFIFO(a.link("lf", a.out("fifo")), unix.O_WRONLY) }},
	{"50 through a descriptor", "EACCES", func(a *attacker) error {
		fd, err := unix.Open(a.out("fifo"), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return openFIFO("/proc/self/fd/"+strconv.Itoa(fd), unix.O_WRONLY)
	}},
}

// landlockVersion returns the version of Landlock in the kernel, or 0 if it has none.
func landlockVersion() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// TestFIFOs checks that a command cannot write to a FIFO outside of the directories that
// it may write (row 50).
func TestFIFOs(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		if landlockVersion() < 2 {
			t.Skip("the kernel has no Landlock that lets files be renamed")
		}
		for _, name := range []string{m.ws + "/fifo", m.outside + "/fifo"} {
			m.must(unix.Mkfifo(name, 0o666))
			m.must(os.Chmod(name, 0o666))
			m.own(name)
			reader, err := os.OpenFile(name, os.O_RDWR, 0) // somebody who reads it
			m.must(err)
			defer reader.Close()
		}
		for _, tty := range []bool{false, true} {
			m.attack(t, "fifo", m.program, m.workspaceWrite(), tty, 0)
			m.must(os.Remove(m.ws + "/dir/linked"))
		}
		sandbox := m.policy("enabled", special("minimal", "read"), special("project_roots", "write"), at(m.outside, "read"), at(m.program, "read"))
		m.attack(t, "fifo", m.program, sandbox, false, 0)
	})
}
