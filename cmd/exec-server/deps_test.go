package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestKnowsNoNATS checks that nothing of the module, with its tests, imports NATS or the
// module of the fleet. That one imports this one, and has NATS to itself.
func TestKnowsNoNATS(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-test", "execserver/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for path := range strings.Lines(string(out)) {
		if path = strings.TrimSpace(path); strings.HasPrefix(path, "github.com/nats-io/") || strings.HasPrefix(path, "execserver/fleet") {
			t.Errorf("the module needs %s", path)
		}
	}
}
