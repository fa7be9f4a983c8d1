//go:build unix

package codex

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
)

// TestBrokenConnection ends the client's connection without a word while its command streams
// output. Without a gateway a link to the server is cut, and mended later. With one the
// gateway gets SIGKILL, and is started again later with the same data at the same addresses;
// the machine is not restarted. The client must notice no difference between the two.
func TestBrokenConnection(t *testing.T) {
	logged := []string{"--log-level", "info"} // for run.attached
	play(t, []scenario{
		{
			// It resumes its session, and has all of the output.
			name:      "stream",
			only:      resumes,
			onlyOurs:  true,
			linked:    true,
			flags:     logged,
			model:     pollToTheEnd(shellWith("stream", `echo once >>runs; "$HELPER" stream; exit 5`, object{"yield_time_ms": 1000})),
			meanwhile: breakStream,
			check: func(t *testing.T, r *run) {
				output, exit, _ := r.polled(t, "stream")
				var want strings.Builder
				count := strings.Count(output, "\n") - 1 // but for the last line
				for n := range count {
					fmt.Fprintln(&want, "line", n+1)
				}
				fmt.Fprintln(&want, "end", count)
				if exit != 5 || output != want.String() {
					t.Errorf("exit %d, want 5; the lines are not the numbered ones: %s", exit, abbreviate(output))
				}
				r.wantShown(t, 5, want.String())
				if runs, err := os.ReadFile(r.served("runs")); string(runs) != "once\n" {
					t.Errorf("the command ran %q, %v", runs, err)
				}
				if begun, resumed := r.attached(false), r.attached(true); len(begun) != 1 || !slices.Equal(begun, resumed) {
					t.Errorf("the client got the sessions %q, and resumed %q", begun, resumed)
				}
			},
		},
		{
			// It can type into the terminal that it had.
			name:     "terminal",
			only:     resumes,
			onlyOurs: true,
			linked:   true,
			model: responses.Script(
				responses.Say(shellWith("ask", `touch up; read word; echo "<$word>"`, object{"tty": true, "yield_time_ms": 2000})),
				typeInto("ask", "answer", "Ada\n", 10000),
			),
			meanwhile: func(t *testing.T, r *run) {
				r.await(t, "up")
				r.breakConnection(t)
				r.mendConnection(t)
				r.waitClient(t)
			},
			check: func(t *testing.T, r *run) { r.want(t, "answer", 0, "Ada\r\n<Ada>\r\n") },
		},
		{
			// This one gives up its command, and the server with it, and says so.
			name:     "stream, given up",
			only:     func(c client) bool { return c.version == oldest },
			onlyOurs: true,
			linked:   true,
			flags:    logged,
			model: responses.Script(
				responses.Say(shell("stream", `"$HELPER" stream`)),
				responses.Say(shell("next", "echo next")),
			),
			meanwhile: func(t *testing.T, r *run) {
				r.await(t, "up")
				r.breakConnection(t)
				r.mendConnection(t)
				r.waitClient(t)
			},
			check: func(t *testing.T, r *run) {
				for _, id := range []string{"stream", "next"} {
					if got := r.result(t, id).text; !strings.Contains(got, "exec-server transport disconnected") {
						t.Errorf("call %s: the model was told: %s", id, abbreviate(got))
					}
				}
				if begun, resumed := r.attached(false), r.attached(true); len(begun) != 1 || len(resumed) > 0 {
					t.Errorf("the client got the sessions %q, and resumed %q", begun, resumed)
				}
			},
		},
	})
}

// breakStream has the helper stream write before the connection breaks, while there is none,
// and after the client has come back.
func breakStream(t *testing.T, r *run) {
	r.await(t, "up")
	r.breakConnection(t)
	r.write(t, "work/broken", "")
	r.await(t, "written")
	if back := r.attached(true); len(back) > 0 {
		t.Errorf("the client resumed %q over a connection that was broken", back)
	}
	r.mendConnection(t)
	waitFor(t, testkit.Patience, func() error {
		if len(r.attached(true)) == 0 {
			return fmt.Errorf("the client has not resumed its session %q", r.attached(false))
		}
		return nil
	})
	r.write(t, "work/go", "")
	r.waitClient(t)
}

// breakConnection ends the client's connection, and lets no other come about.
func (r *run) breakConnection(t *testing.T) {
	t.Helper()
	if g := r.server.gateway; g != nil {
		g.kill(t)
		return
	}
	r.cutLink(t)
}

// mendConnection lets the client come back.
func (r *run) mendConnection(t *testing.T) {
	t.Helper()
	if g := r.server.gateway; g != nil {
		g.start(t)
		return
	}
	r.mendLink()
}

var attachedLine = regexp.MustCompile(`"session attached" .*\bsessionId=(\S+) .*\bresumed=(\S+)`)

// attached returns the new sessions that clients got, or those that they resumed, as the log
// of the server has them.
func (r *run) attached(resumed bool) (sessions []string) {
	for _, line := range attachedLine.FindAllStringSubmatch(r.server.stderr.String(), -1) {
		if line[2] == fmt.Sprint(resumed) {
			sessions = append(sessions, line[1])
		}
	}
	return sessions
}

// wantShown checks that the client shows its user one command, and nothing of a broken
// connection.
func (r *run) wantShown(t *testing.T, exit int, output string) {
	t.Helper()
	commands := 0
	for line := range strings.Lines(r.local.stdout.String()) {
		var event struct {
			Type string
			Item struct {
				Type             string
				ExitCode         int    `json:"exit_code"`
				AggregatedOutput string `json:"aggregated_output"`
			}
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("the client printed %q: %v", line, err)
		}
		if strings.Contains(event.Type, "error") || strings.Contains(event.Type, "failed") || event.Item.Type == "error" {
			t.Errorf("the client shows %s", line)
		}
		if event.Type != "item.completed" || event.Item.Type != "command_execution" {
			continue
		}
		commands++
		if event.Item.ExitCode != exit || event.Item.AggregatedOutput != output {
			t.Errorf("the client shows exit code %d, want %d, and %s", event.Item.ExitCode, exit, abbreviate(event.Item.AggregatedOutput))
		}
	}
	if commands != 1 {
		t.Errorf("the client shows %d commands, want 1", commands)
	}
	if text := r.local.stderr.String(); strings.Contains(text, "ERROR") {
		t.Errorf("the client complains: %s", text)
	}
}
