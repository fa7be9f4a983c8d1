package sandbox

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"execserver/internal/testkit"
	"execserver/protocol"
)

// TestTargetsOfSeveralServers lets two servers confine commands to the same directory all
// the time. Each of them creates and removes missing protected names while the other does
// the same.
func TestTargetsOfSeveralServers(t *testing.T) {
	dir := t.TempDir()
	policy := &protocol.Sandbox{Files: &protocol.FilePolicy{Entries: []protocol.FileEntry{
		{Access: protocol.AccessRead, Special: protocol.SpecialRoot},
		{Access: protocol.AccessWrite, Special: protocol.SpecialProjectRoots},
	}}}
	var wg sync.WaitGroup
	for range 2 {
		// The means do not matter here, nor whether this machine has any.
		e := &Engine{probe: make(chan struct{}), mechanism: MechanismUser, log: slog.New(slog.DiscardHandler)}
		e.opts = Options{Mode: ModeAuto, StateDir: t.TempDir()}
		e.state = newEngineState(&e.opts, e.log)
		e.ctx, e.stop = context.WithCancel(context.Background())
		close(e.probe)
		for range 2 {
			wg.Go(func() {
				for range 50 {
					c, err := e.Confine(policy, Context{Cwd: dir})
					if err != nil {
						t.Error(err)
						return
					}
					c.Release()
				}
			})
		}
		defer e.Close()
	}
	wg.Wait()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestProbeDirectory checks that probeDir avoids /dev, because a sandbox has a /dev of
// its own.
func TestProbeDirectory(t *testing.T) {
	t.Setenv("TMPDIR", "/dev/shm")
	dir, err := probeDir()
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dir)
	if strings.HasPrefix(dir, "/dev/") {
		t.Errorf("mechanisms are tried in %s", dir)
	}
}

// TestTargetBehindLink replaces a directory by a link, after the plan to create a target
// in it was made, or after the target was created.
func TestTargetBehindLink(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	inside, outside := filepath.Join(base, "inside"), filepath.Join(base, "outside")
	swap := func() {
		t.Helper()
		_ = os.Rename(inside, inside+"-moved")
		if err := os.Symlink(outside, inside); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{inside, outside} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	j := openJournal("", slog.New(slog.DiscardHandler))
	made, err := acquireTarget(filepath.Join(inside, ".codex"), true, j)
	if err != nil || made == nil {
		t.Fatal(made, err)
	}
	swap()
	// By its path it looks like the same directory.
	if err := os.Rename(filepath.Join(inside+"-moved", ".codex"), filepath.Join(outside, ".codex")); err != nil {
		t.Fatal(err)
	}
	made.release()
	if _, err := os.Lstat(filepath.Join(outside, ".codex")); err != nil {
		t.Errorf("a directory behind a link is removed: %v", err)
	}
	if other, err := acquireTarget(filepath.Join(inside, ".agents"), true, j); other != nil || err == nil {
		t.Errorf("a target is made behind a link: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(outside, ".agents")); err == nil {
		t.Error("a directory is made behind a link")
	}
}

// TestSystemForeignStateDirectory uses a runtime directory that belongs to another user.
func TestSystemForeignStateDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	if got := stateDirs()[0]; got != filepath.Join(dir, "exec-server") {
		t.Errorf("journals are in %s", got)
	}
	testkit.System(t, testkit.Root)
	if err := os.Chown(dir, 61234, 61234); err != nil {
		t.Fatal(err)
	}
	if got := stateDirs()[0]; strings.HasPrefix(got, dir) {
		t.Errorf("journals are in %s, which belongs to somebody else", got)
	}
}
