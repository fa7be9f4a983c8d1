//go:build unix

package codex

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
	"execserver/internal/testkit/testclient"
	"execserver/protocol"
)

// What an agent starts with & keeps the output of the shell, and must not keep the
// command from ending. Local execution does the same; the server of release 0.169
// keeps the command until the client's patience is over.
func TestBackground(t *testing.T) {
	play(t, []scenario{
		{
			name:     "silent server",
			onlyOurs: true,
			model:    responses.Script(responses.Say(shell("up", `sleep 300 & sleep 0.3; echo up`))),
			check: func(t *testing.T, r *run) {
				r.want(t, "up", 0, "up\n")
				r.prompt(t, "up")
			},
		},
		{
			name:     "silent server, tty",
			onlyOurs: true,
			model: responses.Script(responses.Say(shellWith("up", `trap '' HUP; sleep 300 & sleep 0.3; echo up`,
				object{"tty": true, "yield_time_ms": 30000}))),
			check: func(t *testing.T, r *run) {
				r.want(t, "up", 0, "up\r\n")
				r.prompt(t, "up")
			},
		},
		{
			// The command writes for ever in the background.
			name:     "busy server",
			onlyOurs: true,
			model:    responses.Script(responses.Say(shell("up", `(while :; do echo busy; sleep 0.05; done) & echo up; exit 3`))),
			check: func(t *testing.T, r *run) {
				if got := r.result(t, "up"); got.exit != 3 || !strings.Contains(got.output, "up\n") || wallTime(t, got) > 15 {
					t.Errorf("exit %d, output %q, after %v s", got.exit, abbreviate(got.output), wallTime(t, got))
				}
			},
		},
		{
			// The log that a server writes after its command has ended can be read, and
			// is whole: its writes neither fail nor block.
			name:     "logging server",
			onlyOurs: true,
			only:     func(c client) bool { return !c.stdio },
			flags:    []string{"--log-level", "info"},
			model: responses.Script(
				responses.Say(shell("up", `"$HELPER" log logged 3 & sleep 0.3; echo up`)),
				responses.Say(shell("next", `echo next`)),
			),
			meanwhile: readLog,
			check: func(t *testing.T, r *run) {
				r.prompt(t, "up")
				r.want(t, "next", 0, "next\n")
			},
		},
	})
}

// readLog reads the log of what the client has left in the background, which it
// does as an observer of the client's session, to its end.
func readLog(t *testing.T, r *run) {
	r.waitClient(t)
	session := regexp.MustCompile(`sessionId=([0-9a-f-]{36})`).FindStringSubmatch(r.server.stderr.String())
	if session == nil {
		t.Fatal("the server does not tell the session")
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	conn, err := testclient.Dial(ctx, r.server.url, testclient.Options{Observe: session[1]})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Drop()
	var list struct {
		Processes []struct {
			ProcessID  string `json:"processId"`
			Background *struct {
				Closed bool `json:"closed"`
			} `json:"background"`
		} `json:"processes"`
	}
	if err := conn.Call(ctx, protocol.MethodList, nil, &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Processes) == 0 || list.Processes[0].Background == nil {
		t.Fatalf("listed are %+v", list)
	}
	log := strings.ReplaceAll(r.result(t, "up").output, "up\n", "")
	wait := uint64(60_000)
	for after := uint64(0); ; {
		var read protocol.ReadBackgroundResult
		params := protocol.ReadParams{ProcessID: list.Processes[0].ProcessID, AfterSeq: &after, WaitMs: &wait}
		if err := conn.Call(ctx, protocol.MethodReadBackground, params, &read); err != nil {
			t.Fatal(err)
		}
		for _, c := range read.Chunks {
			log += string(c.Data)
		}
		if read.Closed && len(read.Chunks) == 0 {
			break
		}
		after = read.NextSeq - 1
	}
	lines := strings.Split(strings.TrimSuffix(log, "\n"), "\n")
	for i, line := range lines {
		if want := fmt.Sprintf("line %d", i+1); line != want {
			t.Errorf("line %d of the log is %q", i+1, line)
		}
	}
	if len(lines) < 2 {
		t.Errorf("the log of three seconds has %d lines", len(lines))
	}
	if _, err := os.Stat(r.served("logged")); err != nil {
		t.Errorf("the server has not ended by itself: %v", err)
	}
}

var wallLine = regexp.MustCompile(`(?m)^Wall time: ([0-9.]+) seconds$`)

// wallTime is how many seconds a command took as the model is told.
func wallTime(t *testing.T, res result) float64 {
	t.Helper()
	m := wallLine.FindStringSubmatch(res.text)
	if m == nil {
		t.Fatalf("the model was told no time: %s", abbreviate(res.text))
	}
	seconds, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return seconds
}

// prompt checks that a command was over before half of the client's patience, which is 30 s.
func (r *run) prompt(t *testing.T, id string) {
	t.Helper()
	if took := wallTime(t, r.result(t, id)); took > 15 {
		t.Errorf("call %s took %v s", id, took)
	}
}
