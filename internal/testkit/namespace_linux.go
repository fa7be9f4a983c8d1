package testkit

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// These tell a test, or all tests of a package, that they have mounts of their
// own.
const (
	namespaceVariable = "EXEC_SERVER_TEST_NAMESPACE"
	isolatedVariable  = "EXEC_SERVER_TEST_ISOLATED"
)

// IsolateMounts is called first by the TestMain of a package whose tests mount
// file systems: it runs them in a process whose mounts nobody else sees, and
// does not return then. Tests of other packages, which may watch the table of
// mounts, are not disturbed. It does nothing where that is not possible.
func IsolateMounts() {
	if os.Getenv(isolatedVariable) != "" {
		// Whatever is mounted from now on stays here; if that fails, the tests
		// that mount something fail as well.
		_ = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		return
	}
	if os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread() // the signal below comes when this thread ends
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), isolatedVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if cmd.Start() != nil {
		runtime.UnlockOSThread()
		return
	}
	if cmd.Wait() == nil {
		os.Exit(0)
	}
	os.Exit(max(1, cmd.ProcessState.ExitCode()))
}

// InMountNamespace runs the calling test once more, in a process whose mounts
// nobody else sees, and reports whether this is that process. The test is
// skipped where that is not possible.
func InMountNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(namespaceVariable) == t.Name() {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Skipf("cannot have mounts of its own here: %v", err)
		}
		return true
	}
	runtime.LockOSThread() // the signal below comes when this thread ends
	defer runtime.UnlockOSThread()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), namespaceVariable+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	output, err := cmd.CombinedOutput()
	text := string(output)
	switch {
	case cmd.Process == nil:
		t.Skipf("cannot have mounts of its own here: %v", err)
	case err != nil:
		t.Errorf("in a mount namespace: %v\n%s", err, text)
	case strings.Contains(text, "--- SKIP"):
		t.Skipf("in a mount namespace:\n%s", text)
	default:
		t.Logf("in a mount namespace:\n%s", text)
	}
	return false
}

// Mount mounts a file system for the rest of a test that has mounts of its own,
// and skips the test where that is not possible.
func Mount(t *testing.T, source, kind, options string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount(source, dir, kind, 0, options); err != nil {
		t.Skipf("cannot mount %s here: %v", kind, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}
