//go:build linux

package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"execserver/internal/fleet"
	"execserver/internal/testkit"
)

// fleetCommand runs exec-server fleet at a gateway.
func fleetCommand(t testing.TB, n *node, args ...string) (out, errOut string, code int) {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, append([]string{"fleet"}, args...)...)
	cmd.Env = append(os.Environ(), "EXEC_SERVER_GATEWAY=ws://"+n.client)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	exit, failed := errors.AsType[*exec.ExitError](err)
	if err != nil && !failed {
		t.Fatal(err)
	}
	if failed {
		code = exit.ExitCode()
	}
	return stdout.String(), stderr.String(), code
}

// TestCommands uses the subcommands of fleet at machines that are real processes.
func TestCommands(t *testing.T) {
	n := gateway(t)
	for i, label := range []string{"zone=a", "zone=a", "zone=b"} {
		join(t, []*node{n}, fmt.Sprint("box-", i), "--label", label)
	}
	listed(t, n, 3)

	out, errOut, code := fleetCommand(t, n, "run", "--label", "zone=a", "--", "sh", "-c", "seq 1 1000; echo oops >&2")
	var want []string
	for i := range 2 {
		for line := range 1000 {
			want = append(want, fmt.Sprintf("box-%d: %d", i, line+1))
		}
	}
	got := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || code != 0 {
		t.Errorf("%d lines came, want %d; exit code %d", len(got), len(want), code)
	}
	for _, part := range []string{"box-0: oops\n", "box-1: oops\n", "2 of 2 machines succeeded\n"} {
		if !strings.Contains(errOut, part) {
			t.Errorf("%q is missing in %q", part, errOut)
		}
	}

	out, errOut, code = fleetCommand(t, n, "run", "--parallel", "1", "--", "sh", "-c", "exit 3")
	if out != "" || code != 1 || strings.Count(errOut, "exit status 3") != 3 || !strings.Contains(errOut, "0 of 3 machines succeeded") {
		t.Errorf("%q, %q, exit code %d", out, errOut, code)
	}

	out, _, code = fleetCommand(t, n, "ls", "--label", "zone=b")
	if code != 0 || strings.Count(out, "\n") != 2 || !strings.Contains(out, "box-2 ") || !strings.Contains(out, "zone=b") {
		t.Errorf("ls: %q", out)
	}
	out, _, _ = fleetCommand(t, n, "info", "box-1")
	var m fleet.Member
	if err := json.Unmarshal([]byte(out), &m); err != nil || m.Name != "box-1" || m.Labels["zone"] != "a" || m.Load.Capacity == 0 {
		t.Errorf("info: %v, %s", err, out)
	}
	if _, errOut, code := fleetCommand(t, n, "drain", "box-1", "nobody"); code != 1 || !strings.Contains(errOut, "nobody") {
		t.Errorf("drain: %d, %s", code, errOut)
	}
	testkit.WaitFor(t, testkit.Patience, func() error { // it has no session, so it leaves
		if out, _, _ := fleetCommand(t, n, "ls"); strings.Contains(out, "box-1") {
			return errors.New(out)
		}
		return nil
	})
}
