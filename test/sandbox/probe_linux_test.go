package sandbox_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"execserver/internal/sandbox"
)

// slowBubblewrap returns a bubblewrap that first runs a command of the shell.
func slowBubblewrap(t *testing.T, first string) string {
	t.Helper()
	bubblewrap, err := exec.LookPath("bwrap")
	if err != nil {
		t.Skip(err)
	}
	slow := filepath.Join(t.TempDir(), "bwrap")
	if err := os.WriteFile(slow, []byte("#!/bin/sh\n"+first+"\nexec "+bubblewrap+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return slow
}

// TestSlowProbe checks that a machine that is slow has a sandbox nevertheless, and that nobody
// gets another answer before it is known.
func TestSlowProbe(t *testing.T) {
	t.Parallel()
	engine := sandbox.New(&sandbox.Options{
		Mechanisms: []sandbox.Mechanism{sandbox.MechanismBubblewrap}, Bubblewrap: slowBubblewrap(t, "sleep 8"), StateDir: t.TempDir(),
	})
	defer engine.Close()
	if means, reason := engine.Mechanism(); means != sandbox.MechanismBubblewrap {
		t.Errorf("the sandbox of a slow machine is %s: %s", means, reason)
	}
}

// TestCloseEndsProbe checks that a probe that never ends by itself ends with the engine.
func TestCloseEndsProbe(t *testing.T) {
	t.Parallel()
	begun := filepath.Join(t.TempDir(), "begun")
	if err := syscall.Mkfifo(begun, 0o600); err != nil {
		t.Fatal(err)
	}
	engine := sandbox.New(&sandbox.Options{
		Mechanisms: []sandbox.Mechanism{sandbox.MechanismBubblewrap},
		Bubblewrap: slowBubblewrap(t, "echo >"+begun+"; exec sleep 1000000"), StateDir: t.TempDir(),
	})
	if _, err := os.ReadFile(begun); err != nil {
		t.Fatal(err)
	}
	answered := make(chan sandbox.Mechanism)
	go func() {
		means, _ := engine.Mechanism()
		answered <- means
	}()
	engine.Close()
	if means := <-answered; means != sandbox.MechanismNone {
		t.Errorf("a probe that was ended has found %s", means)
	}
}
