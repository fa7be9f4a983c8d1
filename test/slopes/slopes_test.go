//go:build linux

package slopes

import (
	"os"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/owning"
)

func TestMain(m *testing.M) {
	testkit.SystemMain()
	testkit.InheritNothing()
	testkit.DefaultSignals()
	owning.Main(m)
	os.Exit(m.Run())
}

// TestSlopes runs TestOwner in one program for each means of a server.
func TestSlopes(t *testing.T) { owning.Each(t, "TestOwner") }

func TestOwner(t *testing.T) {
	if owning.Mechanism() == "" {
		t.Skip("TestSlopes runs it, in programs of its own")
	}
	commands := int(testkit.Number(t, "SLOPES_COMMANDS", 1000))
	o, groups := owning.New(t)
	for _, test := range []struct {
		name       string
		perSession int
	}{
		{"one session", commands},
		{"many sessions", max(1, commands/1000)},
	} {
		t.Run(test.name, func(t *testing.T) {
			begun := time.Now()
			r := newRun(t, o, groups)
			r.all(commands, test.perSession)
			t.Logf("%d commands in %v", commands, time.Since(begun).Round(time.Second))
			r.report(string(owning.Mechanism()) + ", " + test.name)
		})
	}
}
