package sandbox_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// In its own user namespace a program has every capability over its copy of the mounts. It
// cannot remove a single mount, but it can leave all of them at once for another root
// directory. If it still had a descriptor of a directory, it could rename and remove
// everything there that is no mount point of the namespace. A program must therefore not
// be able to keep such a descriptor.
var nestedAttacks = []attempt{
	{"27 user namespace by clone", "EPERM", func(a *attacker) error {
		return nested("true", a, unix.CLONE_NEWUSER)
	}},
	{"27 user namespace by unshare", "EPERM", func(*attacker) error {
		return unix.Unshare(unix.CLONE_NEWUSER) // EINVAL of the kernel, for a program with threads
	}},
	{"27 user namespace by clone3", "ENOSYS", func(*attacker) error {
		return call(unix.SYS_CLONE3, 0, 0) // EINVAL of the kernel
	}},
	{"27 user namespace that is entered", "EPERM EINVAL", func(*attacker) error {
		fd, err := unix.Open("/proc/self/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Setns(fd, unix.CLONE_NEWUSER)
	}},
	{"27 rename .git where nothing is mounted on it", "EPERM", func(a *attacker) error {
		return nested("leave", a, unix.CLONE_NEWUSER|unix.CLONE_NEWNS)
	}},
	{"27 mount control groups", "EPERM", func(a *attacker) error {
		return nested("cgroup", a, unix.CLONE_NEWUSER|unix.CLONE_NEWNS|unix.CLONE_NEWCGROUP)
	}},
	{"27 mount /proc", "EPERM", func(a *attacker) error {
		return nested("proc", a, unix.CLONE_NEWUSER|unix.CLONE_NEWNS|unix.CLONE_NEWPID)
	}},
}

// nested makes an attempt in new namespaces.
func nested(what string, a *attacker, flags uintptr) error {
	cmd := exec.Command("/proc/self/exe", "nested", what, a.ws)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: flags, AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT},
	}
	return cmd.Run()
}

// inNested is the program that nested starts. It succeeds if the attack does.
func inNested(what, ws string) {
	runtime.LockOSThread()
	dir := ws + "/dir"
	var err error
	switch what {
	case "leave":
		err = leaveAndRename(ws)
	case "cgroup":
		err = unix.Mount("cgroup2", dir, "cgroup2", 0, "")
	case "proc":
		err = unix.Mount("proc", dir, "proc", 0, "")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, what, err)
		os.Exit(1)
	}
}

// leaveAndRename makes an empty directory the root and renames .git through a descriptor
// of its parent directory.
func leaveAndRename(ws string) error {
	root, err := unix.Open(ws, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	dir := ws + "/dir"
	for _, step := range []func() error{
		func() error { return os.MkdirAll(dir+"/old", 0o755) },
		func() error { return unix.Mount(dir, dir, "", unix.MS_BIND, "") },
		func() error { return unix.Chdir(dir) },
		func() error { return unix.PivotRoot(".", "old") },
		func() error { return unix.Chdir("/") },
		func() error { return unix.Unmount("/old", unix.MNT_DETACH) },
		func() error { return unix.Renameat(root, ".git", root, "git") },
		func() error { return unix.Mkdirat(root, ".git", 0o755) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
