package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// variable has the Machine for the process that becomes the first one of it.
const variable = "EXEC_SERVER_MACHINE"

// shared are the directories that a machine has from this one.
var shared = []string{"bin", "etc", "gnu", "lib", "lib32", "lib64", "nix", "sbin", "sys", "usr"}

// own are the directories that each machine has for itself.
var own = []string{"home", "opt", "proc", "root", "run", "srv", "tmp", "var/tmp"}

// initMachine returns at once, except in the process that machineCommand has started on another machine:
// there it becomes the program. Call it first in main, and in TestMain.
func initMachine() {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	var m machine
	err := json.Unmarshal([]byte(text), &m)
	if err == nil {
		err = m.become()
	}
	fmt.Fprintf(os.Stderr, "cannot start %s on a machine named %s: %v\n", m.Argv, m.Name, err)
	os.Exit(125)
}

// machineCommand returns the command that runs the program of m, to be started by the caller. When
// it has ended, and when the thread that starts it ends, everything on the machine ends. Start
// fails with EPERM where the system allows no namespaces; where it allows too few, the
// command ends with 125 and says why.
func machineCommand(m machine) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = []string{variable + "=" + string(text)}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
		Setpgid:    true, // keys at the terminal are for the programs of this machine
	}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	return cmd, nil
}

// become makes this process the first one of the machine. It returns only an error.
func (m machine) become() error {
	if err := unix.Sethostname([]byte(m.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := m.build(); err != nil {
		return err
	}
	// The new root goes on top of the old one, which then goes away.
	if err := os.Chdir(m.Root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change to %s as the root: %w", m.Root, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	if err := os.MkdirAll(m.Dir, 0o755); err != nil {
		return err
	}
	if err := os.Chdir(m.Dir); err != nil {
		return err
	}
	return &os.PathError{Op: "execute", Path: m.Argv[0], Err: syscall.Exec(m.Argv[0], m.Argv, m.Env)}
}

// build makes the root directory.
func (m machine) build() error {
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE); err != nil {
		return err
	}
	if err := mount("tmpfs", m.Root, "tmpfs", unix.MS_NOSUID); err != nil {
		return err
	}
	for _, name := range shared {
		if err := m.share(name); err != nil {
			return err
		}
	}
	for _, name := range own {
		if err := os.MkdirAll(filepath.Join(m.Root, name), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(m.Root, "tmp"), 0o777|fs.ModeSticky); err != nil {
		return err
	}
	if err := mount("proc", filepath.Join(m.Root, "proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC); err != nil {
		return err
	}
	if err := m.bind("/dev", "/dev"); err != nil { // writable: it has terminals
		return err
	}
	for path, content := range m.Files {
		if err := m.write(path, content); err != nil {
			return err
		}
	}
	for path, file := range m.Links {
		if err := m.bind(file, path); err != nil {
			return err
		}
	}
	return nil
}

// share shows a directory of this machine, read-only, and copies a link to one.
func (m machine) share(name string) error {
	here, there := filepath.Join("/", name), filepath.Join(m.Root, name)
	info, err := os.Lstat(here)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() == fs.ModeSymlink {
		target, err := os.Readlink(here)
		if err != nil {
			return err
		}
		return os.Symlink(target, there)
	}
	if err := m.bind(here, here); err != nil {
		return err
	}
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, there, unix.AT_RECURSIVE, &readOnly); err != nil {
		return fmt.Errorf("make %s read-only: %w", there, err)
	}
	return nil
}

// bind shows a file or a directory of this machine at a path of the other one.
func (m machine) bind(here, path string) error {
	info, err := os.Stat(here)
	if err != nil {
		return err
	}
	there := filepath.Join(m.Root, path)
	if info.IsDir() {
		err = os.MkdirAll(there, 0o755)
	} else {
		err = m.write(path, "")
	}
	if err != nil {
		return err
	}
	return mount(here, there, "", unix.MS_BIND|unix.MS_REC)
}

// write makes a file of the machine.
func (m machine) write(path, content string) error {
	path = filepath.Join(m.Root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o600)
}

func mount(source, target, kind string, flags uintptr) error {
	if err := unix.Mount(source, target, kind, flags, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}
