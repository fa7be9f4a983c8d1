//go:build linux && faults

package faults

import (
	"errors"
	"strings"
	"testing"

	"execserver/internal/fault"
	"execserver/internal/process"
	"execserver/internal/testkit"
	"execserver/internal/testkit/owning"
)

// TestPanic panics at every point of a start, and checks that nothing is left.
func TestPanic(t *testing.T) {
	if owning.Mechanism() != "" {
		t.Skip("this program owns by another mechanism")
	}
	mark := t.TempDir()
	start := func(plan fault.Plan) (fault.Report, error) {
		argv, env := testkit.Child("idle")
		env[markVariable] = mark
		fault.Arm(plan)
		p, err := process.Start(process.Spec{Argv: argv, Env: env, Dir: "/", PipeStdin: true}, nil)
		report := fault.Disarm()
		if err == nil {
			p.Kill()
			<-p.Closed()
			p.Release()
		}
		return report, err
	}
	first, err := start(fault.Plan{})
	if err != nil {
		t.Fatal(err)
	}
	panicked := 0
	for _, place := range first.Places {
		// Others run on goroutines of their own, such as the one that reads the children of a fork
		// thread.
		if !strings.Contains(place, "/spawn") || strings.HasPrefix(place, "readfile ") {
			continue
		}
		report, err := start(fault.Plan{Place: place, N: 1, Panic: true})
		if fault := (*process.PanicError)(nil); !errors.As(err, &fault) || len(report.Hits) != 1 {
			t.Errorf("%s: the start returns %v", place, err)
		}
		panicked++
		if left := testkit.WithVariable(t, markVariable, mark); len(left) > 0 {
			t.Errorf("%s: %q is left", place, left)
		}
		if zombies := testkit.Zombies(t); len(zombies) > 0 {
			t.Errorf("%s: %q are left", place, zombies)
		}
	}
	if panicked < 3 {
		t.Errorf("only %d of %q panicked", panicked, first.Places)
	}
}
