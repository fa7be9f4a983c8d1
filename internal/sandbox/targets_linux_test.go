package sandbox

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"execserver/protocol"
)

// TestTargetsOfSeveralServers has two servers confine commands to the same
// directory all the time, whose missing protected names each of them makes and
// removes under the eyes of the other.
func TestTargetsOfSeveralServers(t *testing.T) {
	dir := t.TempDir()
	policy := &protocol.Sandbox{Files: &protocol.FilePolicy{Entries: []protocol.FileEntry{
		{Access: protocol.AccessRead, Special: protocol.SpecialRoot},
		{Access: protocol.AccessWrite, Special: protocol.SpecialProjectRoots},
	}}}
	var wg sync.WaitGroup
	for range 2 {
		// What enforces the plan does not matter here, nor whether this machine can.
		e := &Engine{first: make(chan struct{}), means: MeansUser, log: slog.New(slog.DiscardHandler)}
		e.opts = Options{Mode: ModeAuto, StateDir: t.TempDir()}
		e.state = newEngineState(&e.opts)
		e.ctx, e.stop = context.WithCancel(context.Background())
		close(e.first)
		for range 2 {
			wg.Go(func() {
				for range 200 {
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

// TestProbeDirectory: what is in /dev is not what is there in a sandbox.
func TestProbeDirectory(t *testing.T) {
	t.Setenv("TMPDIR", "/dev/shm")
	dir, err := probeDir()
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dir)
	if strings.HasPrefix(dir, "/dev/") {
		t.Errorf("means are tried in %s", dir)
	}
}
