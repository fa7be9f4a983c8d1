package sandbox_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/seccomp"
	"execserver/internal/testkit"
)

// becomeContained executes a program in a container like those that container engines
// make for an ordinary user without capabilities: the root directory holds little, parts
// of /proc are hidden and the rest is read-only, and the program cannot gain privileges.
// In the kind "profile" the program may not make namespaces either, as with the default
// seccomp profiles. In the kind "root" the user is root, but without capabilities.
func becomeContained(base, kind string, argv []string) error {
	runtime.LockOSThread()
	root := filepath.Join(base, "root")
	step := func(what string, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
	return errors.Join(
		step("mounts", containerRoot(root, base)),
		step("/dev", containerDevices(root)),
		step("/proc", containerProc(root)),
		step("chdir", unix.Chdir(root)),
		step("pivot_root", unix.PivotRoot(".", ".")),
		step("umount", unix.Unmount(".", unix.MNT_DETACH)),
		step("rights", containerRights(kind)),
		step("chdir", unix.Chdir(base)),
		step("exec", unix.Exec(argv[0], argv, os.Environ())))
}

// bind makes a bind mount, read-only or writable.
func bind(from, to string, flags uintptr) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	if flags == 0 {
		return nil
	}
	return unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|flags, "")
}

func containerRoot(root, base string) error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	for _, name := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/sys"} {
		if target, err := os.Readlink(name); err == nil {
			if err := os.Symlink(target, root+name); err != nil {
				return err
			}
			continue
		}
		if _, err := os.Stat(name); err != nil {
			continue
		}
		if err := errors.Join(os.Mkdir(root+name, 0o755), bind(name, root+name, unix.MS_RDONLY)); err != nil {
			return err
		}
	}
	return errors.Join(
		os.MkdirAll(root+base, 0o755), bind(base, root+base, 0),
		os.Mkdir(root+"/tmp", 0o755), unix.Mount("tmpfs", root+"/tmp", "tmpfs", unix.MS_NOSUID, "mode=1777"))
}

func containerDevices(root string) error {
	dev := root + "/dev"
	err := errors.Join(
		os.Mkdir(dev, 0o755), unix.Mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID, "mode=0755"),
		os.Mkdir(dev+"/pts", 0o755), unix.Mount("devpts", dev+"/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=0620"),
		os.Mkdir(dev+"/shm", 0o755), unix.Mount("tmpfs", dev+"/shm", "tmpfs", 0, "mode=1777"),
		os.Symlink("pts/ptmx", dev+"/ptmx"), os.Symlink("/proc/self/fd", dev+"/fd"))
	for _, name := range []string{"/null", "/zero", "/full", "/random", "/urandom", "/tty"} {
		err = errors.Join(err, os.WriteFile(dev+name, nil, 0o666), bind("/dev"+name, dev+name, 0))
	}
	return err
}

func containerProc(root string) error {
	proc := root + "/proc"
	err := errors.Join(os.Mkdir(proc, 0o755), unix.Mount("proc", proc, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""))
	for _, name := range []string{"/kcore", "/keys", "/timer_list"} { // hidden
		if _, missing := os.Lstat(proc + name); missing == nil {
			err = errors.Join(err, bind("/dev/null", proc+name, 0))
		}
	}
	for _, name := range []string{"/bus", "/fs", "/irq", "/sys", "/sysrq-trigger"} {
		if _, missing := os.Lstat(proc + name); missing == nil {
			err = errors.Join(err, bind(proc+name, proc+name, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC))
		}
	}
	return err
}

func containerRights(kind string) error {
	for capability := range uintptr(unix.CAP_LAST_CAP + 1) {
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0) // the kernel may not know it
	}
	id := 61234
	if kind == "root" {
		id = 0
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	err := errors.Join(
		unix.Setgroups(nil), unix.Setresgid(id, id, id), unix.Setresuid(id, id, id),
		unix.Capset(&header, &none[0]), unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	if err == nil && kind == "profile" {
		err = seccomp.Install(seccomp.Filter(seccomp.NetworkMachine, true))
	}
	return err
}

// containerAttacks are the most important of the attempts. The kernel allows no new /proc
// in the container, so the sandbox shows that of the container, in which the server is
// process 1. The attacker can see the server but not affect it: for signals, process 1 is
// the sandbox's own.
var containerAttacks = append(slices.DeleteFunc(
	slices.Concat(fileAttacks, processAttacks, nestedAttacks, networkAttacks),
	func(a attempt) bool {
		return slices.Contains([]string{"16 see a process outside", "16 signal a process outside", "18 open /proc/1/mem"}, a.name)
	}),
	attempt{"16 touch a process outside", "EROFS EACCES", func(*attacker) error { return write("/proc/1/oom_score_adj") }},
	attempt{"17 memory of a process outside", "EACCES", func(*attacker) error { return read("/proc/1/mem") }},
	attempt{"17 write the memory of a process outside", "EROFS EACCES", func(*attacker) error { return write("/proc/1/mem") }},
)

// newContained starts a server in a container.
func newContained(t *testing.T, kind string) *machine {
	testkit.System(t, testkit.Root)
	u := user{"ordinary", 61234}
	if kind == "root" {
		u = user{"root", 0}
	}
	m := prepareMachine(t, u, "")
	m.must(os.Mkdir(filepath.Join(m.base, "root"), 0o755))
	m.inside = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
	m.through = []string{"contained", m.base, kind}
	m.start()
	m.pid = 1 // in there
	return m
}

// TestContainer runs a server in a container without privileges, with and without user
// namespaces.
func TestContainer(t *testing.T) {
	t.Run("allowed", func(t *testing.T) {
		t.Parallel()
		m := newContained(t, "unconfined")
		if m.conn.Info.Sandbox.Means != "userNamespace" {
			t.Fatalf("%+v", m.conn.Info.Sandbox)
		}
		before := m.snapshot(m.outside) + m.snapshot(filepath.Join(m.ws, ".git"))
		for _, tty := range []bool{false, true} {
			m.attack(t, "container", m.program, m.workspaceWrite(), tty, 0)
		}
		m.says(m.policy("restricted", special("minimal", "read"), special("project_roots", "write")),
			[2]string{"touch x", "done"}, [2]string{"cat " + m.outside + "/file", "No such file"}, [2]string{"touch .git/x", "Read-only file system"})
		m.says(m.workspaceWrite(at(m.outside, "deny")), [2]string{"ls " + m.outside, "Permission denied"})
		write := object{"path": uri(m.outside + "/new"), "dataBase64": "", "sandbox": m.workspaceWrite()}
		m.wants(-32603, "read-only file system (os error 30)", "fs/writeFile", write)
		write["path"] = uri(m.ws + "/new")
		m.wants(0, "", "fs/writeFile", write)
		if after := m.snapshot(m.outside) + m.snapshot(filepath.Join(m.ws, ".git")); after != before {
			t.Errorf("the attacks have left\n%s\nof\n%s", after, before)
		}
		m.clean(m.ws)
	})
	for kind, why := range map[string]string{
		"profile": "user namespaces: the kernel refuses to start a program in namespaces of its own",
		"root":    "user namespaces: the kernel refuses namespaces to root without capabilities, but not to other users",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			m := newContained(t, kind)
			if m.conn.Info.Sandbox.Means != "none" || !strings.Contains(m.conn.Info.Sandbox.Reason, why) {
				t.Fatalf("%+v, want %q", m.conn.Info.Sandbox, why)
			}
			m.refusesEverything()
		})
	}
}
