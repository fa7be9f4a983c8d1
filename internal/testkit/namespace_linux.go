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

// These environment variables tell a test, or all tests of a package, that they run in
// a namespace of their own.
const (
	namespaceVariable = "EXEC_SERVER_TEST_NAMESPACE"
	isolatedVariable  = "EXEC_SERVER_TEST_ISOLATED"
)

// IsolateMounts runs the tests of a package in a process with its own mount namespace,
// and does not return. Other tests, which may watch the table of mounts, then see none of
// the mounts. more are the flags of further namespaces. If the machine does not allow a
// namespace, IsolateMounts returns and does nothing. TestMain must call it first.
func IsolateMounts(more ...uintptr) {
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
	for _, flag := range more {
		cmd.SysProcAttr.Cloneflags |= flag
	}
	if cmd.Start() != nil {
		runtime.UnlockOSThread()
		return
	}
	if cmd.Wait() == nil {
		os.Exit(0)
	}
	os.Exit(max(1, cmd.ProcessState.ExitCode()))
}

// InMountNamespace runs the calling test again in a process with its own mount
// namespace, and reports whether it was called in that process. It skips the test if the
// machine does not allow a namespace.
func InMountNamespace(t *testing.T) bool {
	t.Helper()
	if !inNamespace(t, unix.CLONE_NEWNS, "a mount namespace") {
		return false
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Skipf("cannot have mounts of its own here: %v", err)
	}
	return true
}

// InNetworkNamespace does the same with a network namespace, which has no address but
// those of loopback.
func InNetworkNamespace(t *testing.T) bool {
	t.Helper()
	if !inNamespace(t, unix.CLONE_NEWNET, "a network namespace") {
		return false
	}
	Configure(t, "ip", "link", "set", "lo", "up")
	return true
}

// Configure runs a program that configures a namespace. It skips the test if that fails.
func Configure(t *testing.T, argv ...string) {
	t.Helper()
	if output, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Skipf("cannot configure the namespace: %q: %v %s", argv, err, output)
	}
}

// inNamespace runs the calling test again in a process with a namespace of its own, and
// reports whether it was called in that process.
func inNamespace(t *testing.T, flag uintptr, what string) bool {
	t.Helper()
	if os.Getenv(namespaceVariable) == t.Name() {
		return true
	}
	runtime.LockOSThread() // the signal below comes when this thread ends
	defer runtime.UnlockOSThread()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), namespaceVariable+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flag, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	output, err := cmd.CombinedOutput()
	text := string(output)
	switch {
	case cmd.Process == nil:
		t.Skipf("cannot have %s here: %v", what, err)
	case err != nil:
		t.Errorf("in %s: %v\n%s", what, err, text)
	case strings.Contains(text, "--- SKIP"):
		t.Skipf("in %s:\n%s", what, text)
	default:
		t.Logf("in %s:\n%s", what, text)
	}
	return false
}

// Mount mounts a file system until the test ends. The test must run in its own mount
// namespace. Mount skips the test if it cannot mount the file system.
func Mount(t *testing.T, source, kind, options string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount(source, dir, kind, 0, options); err != nil {
		t.Skipf("cannot mount %s here: %v", kind, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}
