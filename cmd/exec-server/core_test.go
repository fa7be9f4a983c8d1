package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestCoreLeavesOut lists what the build tag core leaves out, and finds it in the build
// without it.
func TestCoreLeavesOut(t *testing.T) {
	packages := func(args ...string) string {
		out, err := exec.Command("go", append(append([]string{"list"}, args...), "-deps", ".")...).Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		return string(out)
	}
	core, all := packages("-tags", "core"), packages()
	for _, path := range []string{
		"github.com/nats-io/", "github.com/prometheus/", "execserver/transport/natstransport",
		"execserver/internal/fleet", "execserver/internal/broker", "execserver/internal/metrics", "execserver/internal/web",
	} {
		if strings.Contains(core, "\n"+path) {
			t.Errorf("the core has %s", path)
		}
		if !strings.Contains(all, "\n"+path) {
			t.Errorf("nothing has %s", path)
		}
	}
}
