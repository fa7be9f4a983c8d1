package process_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"execserver/internal/testkit"
)

// TestReapsStrays: with CLONE_PARENT, a command makes children of the server that nobody
// has started. When they end, they must not stay zombies until the server ends, and the
// status of everything that somebody waits for must stay where it is.
func TestReapsStrays(t *testing.T) {
	other := exec.Command("/bin/sh", "-c", "exit 7")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	spec := child("strays", "20")
	spec.PipeStdin = true
	p := start(t, spec, nil)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if p.Log.Last() == 0 {
			return errors.New("no output yet")
		}
		if children := testkit.Children(os.Getpid()); len(children) > 2 { // other and p's leader
			return fmt.Errorf("children %d; the zombies among them:\n%s", children, strings.Join(testkit.Zombies(t), ""))
		}
		return nil
	})
	if err := p.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	if s := follow(t, p); s.Exit.ExitCode != 0 || !strings.Contains(s.All, "started 20 <nil>") {
		t.Errorf("exit code %d, output %q", s.Exit.ExitCode, s.All)
	}
	if _ = other.Wait(); other.ProcessState.ExitCode() != 7 {
		t.Errorf("a command that the server did not start: %v", other.ProcessState)
	}
}
