//go:build unix

package codex

import (
	"fmt"
	"strings"
	"testing"

	"execserver/internal/testkit/responses"
)

func TestCommands(t *testing.T) {
	play(t, []scenario{
		{
			name:  "echo",
			model: responses.Script(responses.Say(shell("echo", "echo hello"))),
			check: wants("echo", 0, "hello\n"),
		},
		{
			// Only the server has the variable: the client did not run the command itself.
			name: "place",
			model: responses.Script(responses.Say(
				shell("place", `echo "on the $EXEC_SERVER_TEST_SIDE's side in ${PWD##*/}"`),
			)),
			check: wants("place", 0, "on the server's side in work\n"),
		},
		{
			name:  "exit code",
			model: responses.Script(responses.Say(shell("exit", "echo bye; exit 3"))),
			check: wants("exit", 3, "bye\n"),
		},
		{
			name:  "stderr",
			model: responses.Script(responses.Say(shell("err", "echo wrong >&2"))),
			check: wants("err", 0, "wrong\n"),
		},
		{
			name: "tty",
			model: responses.Script(
				responses.Say(shellWith("ask",
					`test -t 0 && test -t 1 && printf 'name? ' && read name && echo "hello $name"`,
					object{"tty": true, "yield_time_ms": 1000})),
				typeInto("ask", "answer", "Ada\n", 10000),
			),
			check: func(t *testing.T, r *run) {
				// The terminal echoes what is typed, and ends lines with \r\n.
				r.wantTyped(t, "ask", "answer")
			},
		},
		{
			name:  "poll",
			model: pollToTheEnd(shellWith("long", `for i in 1 2 3 4 5 6; do echo "tick $i"; sleep 1; done`, object{"yield_time_ms": 1000})),
			check: func(t *testing.T, r *run) {
				output, exit, polls := r.polled(t, "long")
				if want := "tick 1\ntick 2\ntick 3\ntick 4\ntick 5\ntick 6\n"; output != want || exit != 0 {
					t.Errorf("exit %d, output %q; want 0, %q", exit, output, want)
				}
				if polls == 0 {
					t.Error("the command ended before it was polled")
				}
			},
		},
		{
			// Each command waits until all are there.
			name: "parallel",
			model: responses.Script(responses.Say(
				shell("first", `"$HELPER" meet . 5; echo 1`),
				shell("second", `"$HELPER" meet . 5; echo 2`),
				shell("third", `"$HELPER" meet . 5; echo 3`),
				shell("fourth", `"$HELPER" meet . 5; echo 4`),
				shell("fifth", `"$HELPER" meet . 5; echo 5`),
			)),
			check: func(t *testing.T, r *run) {
				for i, id := range []string{"first", "second", "third", "fourth", "fifth"} {
					r.want(t, id, 0, fmt.Sprintf("met\n%d\n", i+1))
				}
			},
		},
		{
			// The client keeps head and tail for the model. That of 0.169 also says how much it
			// got, as a quarter of the bytes. That of 0.130 reads what the server retains, which is
			// too little now and then with a server of its own release: then the head is lost.
			name:  "5 MB",
			model: responses.Script(responses.Say(shell("spew", `"$HELPER" spew 5000000; exit 7`))),
			check: func(t *testing.T, r *run) {
				got := r.result(t, "spew")
				head := strings.Contains(got.output, "HEAD\n0000000 xxx")
				tail := strings.HasSuffix(got.output, "xxx\nTAIL\n")
				if got.exit != 7 || !head || !tail {
					t.Errorf("exit %d, head %v, tail %v; want 7 and both\nThe model was told: %s",
						got.exit, head, tail, abbreviate(got.text))
				}
				const all = "Original token count: 1250003\n" // HEAD and TAIL are 10 bytes more
				if r.client.version != oldest && !strings.Contains(got.text, all) {
					t.Errorf("the client did not get all: %s", abbreviate(got.text))
				}
			},
		},
		{
			// What comes soon after the end of a command belongs to it.
			name:  "late output",
			model: responses.Script(responses.Say(shell("late", `(sleep 0.05; echo late) & echo early; exit 4`))),
			check: wants("late", 4, "early\nlate\n"),
		},
		{
			name:  "not UTF-8",
			model: responses.Script(responses.Say(shell("bytes", `printf 'a\377\376b\0c\n'`))),
			check: wants("bytes", 0, "a\uFFFD\uFFFDb\x00c\n"),
		},
	})
}

// polled returns what the model was told about the command of pollToTheEnd, in so many polls.
func (r *run) polled(t *testing.T, id string) (output string, exit, polls int) {
	t.Helper()
	last := r.result(t, id)
	for output = last.output; last.exit < 0; output += last.output {
		polls++
		last = r.result(t, fmt.Sprintf("poll %d", polls))
	}
	return output, last.exit, polls
}

// pollToTheEnd starts a command and then waits for its output until it has ended.
func pollToTheEnd(call responses.Item) responses.Model {
	return func(r *responses.Request) []responses.Item {
		if r.N == 0 {
			return []responses.Item{call}
		}
		last := r.Input[len(r.Input)-1]
		if parseResult(last.Text()).exit >= 0 {
			return []responses.Item{responses.Message("it has ended")}
		}
		return typeInto(call.CallID, fmt.Sprintf("poll %d", r.N), "", 5000)(r)
	}
}
