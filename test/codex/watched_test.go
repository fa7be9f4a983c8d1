//go:build unix

package codex

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
)

// A person sees from another terminal what a client does, while it does it, and the client
// notices nothing.
func TestWatched(t *testing.T) {
	listens := func(c client) bool { return !c.stdio }
	play(t, []scenario{
		{
			name:     "pipe",
			only:     listens,
			onlyOurs: true,
			model: responses.Script(responses.Say(shell("work",
				`echo one; touch up; "$HELPER" await go; echo two; "$HELPER" await end; exit 5`))),
			meanwhile: watch,
			check:     wants("work", 5, "one\ntwo\n"),
		},
		{
			name:     "terminal",
			only:     listens,
			onlyOurs: true,
			model: responses.Script(responses.Say(shellWith("work",
				`echo one; touch up; "$HELPER" await go; echo two; "$HELPER" await end; exit 5`,
				object{"tty": true, "yield_time_ms": 30000}))),
			meanwhile: watch,
			check:     wants("work", 5, "one\r\ntwo\r\n"),
		},
	})
}

func watch(t *testing.T, r *run) {
	r.await(t, "up")
	target := r.listed(t)
	taker := r.tool(t, "attach", target)
	if out, err := exec.Command(taker[0], taker[1:]...).CombinedOutput(); err == nil || !strings.Contains(string(out), "would lose it") {
		t.Errorf("attach takes the session from the client: %v, %s", err, out)
	}
	watcher := start(t, r.tool(t, "attach", "--read-only", target), r.work, r.env())
	defer watcher.stop(9)
	r.seen(t, watcher, "one")
	r.write(t, "work/go", "")
	r.seen(t, watcher, "two")
	logs := r.tool(t, "logs", target)
	if out, err := exec.Command(logs[0], logs[1:]...).CombinedOutput(); err != nil ||
		strings.ReplaceAll(string(out), "\r", "") != "one\ntwo\n" {
		t.Errorf("logs: %v, %q", err, out)
	}
	r.write(t, "work/end", "")
	select {
	case <-watcher.done:
	case <-time.After(time.Minute):
		t.Fatal("attach has not ended with the command")
	}
	if code := watcher.cmd.ProcessState.ExitCode(); code != 5 {
		t.Errorf("attach ended with %d, want the command's 5\n%s", code, watcher.stderr.String())
	}
	r.waitClient(t)
}

// tool is the command line of a subcommand of the server's program, as a person types it in
// another terminal.
func (r *run) tool(t *testing.T, name string, args ...string) []string {
	command, _ := serverCommand(t, r.client)
	return append([]string{command[0], name, "--url", r.server.url}, args...)
}

// listed returns the client's command as ps lists it: SESSION/PROCESS.
func (r *run) listed(t *testing.T) (target string) {
	t.Helper()
	ps := r.tool(t, "ps", "--json")
	waitFor(t, testkit.Patience, func() error {
		out, err := exec.Command(ps[0], ps[1:]...).Output()
		if err != nil {
			return fmt.Errorf("ps: %w", err)
		}
		var processes []struct {
			SessionID string   `json:"sessionId"`
			ProcessID string   `json:"processId"`
			Argv      []string `json:"argv"`
			State     string   `json:"state"`
		}
		if err := json.Unmarshal(out, &processes); err != nil {
			return fmt.Errorf("ps printed %q: %w", out, err)
		}
		for _, p := range processes {
			if strings.Contains(strings.Join(p.Argv, " "), "await go") && p.State == "running" {
				target = p.SessionID + "/" + p.ProcessID
				return nil
			}
		}
		return errors.New("ps does not list the client's command: " + string(out))
	})
	return target
}

// seen waits until a watcher has seen a line.
func (r *run) seen(t *testing.T, watcher *program, line string) {
	t.Helper()
	waitFor(t, testkit.Patience, func() error {
		if out := watcher.stdout.String(); !strings.Contains(out, line) {
			return fmt.Errorf("attach has printed %q, not %q\n%s", out, line, watcher.stderr.String())
		}
		return nil
	})
}
