package main

import (
	"errors"
	"os/exec"
	"path/filepath"
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
		"github.com/nats-io/", "github.com/prometheus/", "execserver/transport/natstransport", "execserver/client/natsclient",
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

// TestCoreRefusesNATS uses --url for a machine behind NATS with the core.
func TestCoreRefusesNATS(t *testing.T) {
	core := filepath.Join(t.TempDir(), "exec-server")
	if out, err := exec.Command("go", "build", "-tags", "core", "-o", core, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	for _, url := range []string{"nats://127.0.0.1:1/box", "tls://127.0.0.1:1/box", "nats+wss://127.0.0.1:1/box"} {
		out, err := exec.Command(core, "run", "--url", url, "--", "true").CombinedOutput()
		exit, _ := errors.AsType[*exec.ExitError](err)
		if exit == nil || exit.ExitCode() != 2 || !strings.HasPrefix(string(out), "error: nats:// is not in this build, which was made with the tag core;") {
			t.Errorf("%s: %v, %s", url, err, out)
		}
	}
}
