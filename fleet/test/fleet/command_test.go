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

	"execserver/client"
	"execserver/client/local"
	"execserver/fleet/internal/fleet"
	"execserver/internal/testkit"
)

// fleetCommand runs exec-fleet at a gateway.
func fleetCommand(t *testing.T, n *node, args ...string) (out, errOut string, code int) {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
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

// TestCommands uses commands at machines that are real processes.
func TestCommands(t *testing.T) {
	t.Parallel()
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

// TestHostileOutput lets a machine print what would control the terminal of exec-fleet run. It does
// not, and to a pipe every byte comes as it is.
func TestHostileOutput(t *testing.T) {
	t.Parallel()
	n := gateway(t)
	join(t, []*node{n}, "box")
	listed(t, n, 1)
	const (
		evil  = "\x1b]52;c;b3duZWQ=\x07\x1b[1A\x1b[2K\rother: fine\u202e\xff\tend"
		shown = `box: \x1b]52;c;b3duZWQ=\a\x1b[1A\x1b[2K\rother: fine\u202e\xff` + "\tend"
	)
	text := evil + "\ndos\\path\nends\tso\r\n"
	run := []string{"run", "--", "sh", "-c", `cat "$0"; head -n 1 "$0" >&2`, testkit.Secret(t, text)}
	out, errOut, code := fleetCommand(t, n, run...)
	if out != "box: "+strings.ReplaceAll(text[:len(text)-1], "\n", "\nbox: ")+"\n" || !strings.HasPrefix(errOut, "box: "+evil+"\n") || code != 0 {
		t.Errorf("to pipes comes %q and %q, exit code %d", out, errOut, code)
	}

	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	here, err := local.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	command := here.Command(t.Context(), path, run...)
	command.TTY = &client.Size{Rows: 30, Cols: 100}
	command.EnvPolicy = client.InheritAll()
	command.Env = []string{"EXEC_SERVER_GATEWAY=ws://" + n.client}
	seen, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %q", err, seen)
	}
	got := strings.Split(strings.TrimSuffix(string(seen), "\r\n"), "\r\n") // a terminal ends lines so
	want := []string{shown, shown, `box: dos\path`, "box: ends\tso", "1 of 1 machines succeeded"}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("on a terminal comes %q, want %q", got, want)
	}
}
