package sandbox_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// becomeBuildRoot mounts the kernel's file systems below base, in a mount namespace of its
// own, and executes argv there as another user.
func becomeBuildRoot(base, id string, argv []string) error {
	runtime.LockOSThread()
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		return err
	}
	for _, m := range []struct{ source, point, kind string }{
		{"proc", "/ws/root/proc", "proc"},
		{"/sys", "/ws/root/sys", ""},
		{"/dev", "/ws/root/dev", ""},
		{"/proc/keys", "/ws/root/keys", ""},
		{"/sys/firmware", "/ws/root/part", ""},
		{"/proc", "/outside/proc", ""},
		{"/sys", "/outside/sys", ""},
	} {
		flags := uintptr(0)
		if m.kind == "" {
			flags = unix.MS_BIND | unix.MS_REC
		}
		if err := unix.Mount(m.source, base+m.point, m.kind, flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.point, err)
		}
	}
	uid, _ := strconv.Atoi(id)
	if err := errors.Join(unix.Setgroups(nil), unix.Setresgid(uid, uid, uid), unix.Setresuid(uid, uid, uid)); err != nil {
		return err
	}
	return unix.Exec(argv[0], argv, os.Environ())
}

// TestBuildRoot has the kernel's file systems mounted in a workspace, as in the root directory
// of a build, and in a directory that commands may read. Root may use them without any
// capability.
func TestBuildRoot(t *testing.T) {
	testkit.System(t, testkit.Root)
	if _, err := os.Stat("/sys/firmware"); err != nil {
		t.Skip(err)
	}
	for _, u := range users() {
		for _, means := range []string{"userNamespace", "namespaces", "bubblewrap"} {
			t.Run(u.name+"/"+means, func(t *testing.T) {
				t.Parallel()
				m := prepareMachine(t, u, means)
				if means == "bubblewrap" && m.bubblewrap == "" {
					testkit.Need(t, "bwrap")
				}
				for _, dir := range []string{"/ws/root/proc", "/ws/root/sys", "/ws/root/dev", "/ws/root/part", "/outside/proc", "/outside/sys"} {
					m.mkdir(m.base + dir)
				}
				m.write(m.ws+"/root/keys", "")
				m.inside = &syscall.SysProcAttr{}
				m.through = []string{"build-root", m.base, strconv.Itoa(u.uid)}
				m.start()
				if m.conn.Info.Sandbox.Means != means {
					t.Skip(m.conn.Info.Sandbox.Reason)
				}
				m.hidesBuildRoot(map[string]object{
					"read": m.policy("restricted", special("root", "read")), "workspace": m.workspaceWrite(),
					"named": m.workspaceWrite(at(m.ws+"/root/proc", "write"), at(m.ws+"/root/keys", "read"), at(m.outside+"/proc", "read")),
					"all":   m.policy("enabled", special("root", "write"), at(m.outside, "read")),
				})
			})
		}
	}
}

func (m *machine) hidesBuildRoot(policies map[string]object) {
	const denied, readOnly = "Permission denied", "Read-only file system"
	hidden := []string{
		m.ws + "/root/proc", m.ws + "/root/proc/self/status", m.ws + "/root/proc/sys/kernel/core_pattern", m.ws + "/root/keys",
		m.ws + "/root/sys/firmware", m.ws + "/root/part", m.outside + "/proc/version", m.outside + "/sys/firmware",
	}
	for name, sandbox := range policies {
		for _, path := range hidden {
			m.says(sandbox, [2]string{"cat " + path, denied})
			if m.call("fs/readFile", object{"path": uri(path), "sandbox": sandbox}, nil) == nil {
				m.t.Errorf("%s: fs/readFile shows %s", name, path)
			}
			if m.call("fs/readDirectory", object{"path": uri(path), "sandbox": sandbox}, nil) == nil {
				m.t.Errorf("%s: fs/readDirectory shows %s", name, path)
			}
		}
		// The modes are those that the files have.
		m.says(sandbox, [2]string{"chmod 755 " + m.ws + "/root/sys/kernel", readOnly}, [2]string{"chmod 666 " + m.ws + "/root/dev/null", readOnly},
			[2]string{"cat " + m.ws + "/root/sys/kernel/uevent_seqnum", "done"})
		if m.t.Failed() {
			m.t.Logf("with the policy %s", name)
			return
		}
	}
}
