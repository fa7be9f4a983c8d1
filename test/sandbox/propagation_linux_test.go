package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sandbox"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// mountLater mounts a file system in outside while a command runs that may write only in
// ws. Like most machines, this one has shared mounts.
func mountLater(means sandbox.Mechanism, ws, outside string) error {
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return err
	}
	engine := sandbox.New(&sandbox.Options{Mechanisms: []sandbox.Mechanism{means}, StateDir: filepath.Dir(ws) + "/state"})
	defer engine.Close()
	confinement, err := engine.Confine(&protocol.Sandbox{Files: &protocol.FilePolicy{Entries: []protocol.FileEntry{
		{Access: protocol.AccessRead, Special: protocol.SpecialRoot},
		{Access: protocol.AccessWrite, Path: protocol.URIPath(ws)},
	}}}, sandbox.Context{})
	if err != nil {
		return err
	}
	defer confinement.Release()
	var mountErr error
	mounted := make(chan struct{})
	err = confinement.Run(context.Background(), sandbox.Command{
		Program: "/bin/sh",
		Argv:    []string{"sh", "-c", "echo >ready; while ! test -e go; do sleep 0.01; done; echo x >" + outside + "/written"},
		Env:     []string{"PATH=/usr/bin:/bin"}, Dir: ws,
		Started: func(*os.Process) {
			go func() {
				defer close(mounted)
				for deadline := time.Now().Add(testkit.Patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
					if _, err := os.Lstat(filepath.Join(ws, "ready")); err == nil {
						break
					}
				}
				mountErr = unix.Mount("tmpfs", outside, "tmpfs", 0, "")
				_ = os.WriteFile(filepath.Join(ws, "go"), nil, 0o666) // then the command ends
			}()
		},
	}, func(*exec.Cmd) {})
	<-mounted
	if _, statErr := os.Lstat(outside + "/written"); statErr == nil {
		return fmt.Errorf("the command has written to %s", outside)
	}
	if mountErr == nil && err == nil {
		return fmt.Errorf("the command has not failed")
	}
	return mountErr
}

// TestLaterMounts checks that a running command cannot write to a file system that is
// mounted later outside of its writable directories.
func TestLaterMounts(t *testing.T) {
	testkit.System(t, testkit.Root)
	for _, means := range []string{"userNamespace", "namespaces"} {
		t.Run(means, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, user{"root", 0}, means)
			cmd := exec.Command(m.program, "mount-later", means, m.ws, m.outside)
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
			output, err := cmd.CombinedOutput()
			if got := strings.TrimSpace(string(output)); err != nil || got != "" {
				t.Errorf("%v: %s", err, got)
			}
		})
	}
}
