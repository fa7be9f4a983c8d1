//go:build unix

package codex

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
)

// A laptop that sleeps finds its background terminal again, and all that this has
// written meanwhile. The client is stopped for as long as EXEC_SERVER_TEST_SLEEP
// says, such as 200s: it is silent, and its connection stays open.
func TestSleepingLaptop(t *testing.T) {
	value := os.Getenv("EXEC_SERVER_TEST_SLEEP")
	if value == "" {
		t.Skip("takes minutes: set EXEC_SERVER_TEST_SLEEP=200s, or run make test-sleep")
	}
	asleep, err := time.ParseDuration(value)
	if err != nil {
		t.Fatal(err)
	}
	work := asleep + 20*time.Second // of the job
	steps := []responses.Model{
		responses.Say(shellWith("job",
			fmt.Sprintf(`exec "$HELPER" log done %d`, int(work.Seconds())), object{"yield_time_ms": 1000})),
	}
	looks := []string{"job"}
	for i := range 4 { // each waits as long as the client lets it
		id := fmt.Sprintf("look%d", i)
		steps = append(steps, typeInto("job", id, "", 30000))
		looks = append(looks, id)
	}
	play(t, []scenario{{
		name:     "stopped client",
		only:     func(c client) bool { return c.version == newest && !c.stdio },
		onlyOurs: true,
		model:    responses.Script(steps...),
		flags:    []string{"--log-level", "info"},
		meanwhile: func(t *testing.T, r *run) {
			// Until the model knows of the job the client has answered a ping: one that
			// never does is not taken to be silent.
			waitFor(t, testkit.Patience, func() error {
				if _, ok := r.model.Output("job"); !ok {
					return errors.New("the model was told nothing about the job")
				}
				return nil
			})
			pid := r.local.cmd.Process.Pid
			stop(t, pid, syscall.SIGSTOP)
			began := time.Now()
			time.Sleep(asleep)
			stop(t, pid, syscall.SIGCONT)
			t.Logf("the client was stopped for %v", time.Since(began))
			r.waitClient(t)
			for line := range strings.Lines(r.server.stderr.String()) {
				if strings.Contains(line, "connection") || strings.Contains(line, "session") {
					t.Log(strings.TrimSpace(line))
				}
			}
		},
		check: func(t *testing.T, r *run) {
			var output strings.Builder
			exit := -1
			for _, id := range looks {
				if told, ok := r.model.Output(id); ok && exit < 0 {
					result := parseResult(told.Text())
					output.WriteString(result.output)
					exit = result.exit
				}
			}
			var want strings.Builder
			for n := range strings.Count(output.String(), "\n") {
				fmt.Fprintln(&want, "line", n+1)
			}
			if lines := int(work / (700 * time.Millisecond)); exit != 0 || strings.Count(want.String(), "\n") < lines || output.String() != want.String() {
				t.Errorf("exit %d, want 0 and at least %d lines; output: %s", exit, lines, abbreviate(output.String()))
			}
		},
	}})
}

// stop sends a signal to a program and all of its threads.
func stop(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
}
