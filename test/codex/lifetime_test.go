//go:build unix

package codex

import (
	"runtime"
	"syscall"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
)

func TestLifetime(t *testing.T) {
	play(t, []scenario{
		{
			// An agent starts a server in the background and uses it in later commands, after
			// the client has terminated the command that started it.
			name: "background",
			model: responses.Script(
				responses.Say(shell("start", `nohup "$HELPER" listen addr >/dev/null 2>&1 & echo started`)),
				responses.Say(shell("get", `"$HELPER" get addr`)),
				responses.Say(shell("again", `"$HELPER" get addr`)),
			),
			check: func(t *testing.T, r *run) {
				r.want(t, "start", 0, "started\n")
				r.want(t, "get", 0, "alive\n")
				r.want(t, "again", 0, "alive\n")
			},
		},
		{
			// A client that dies takes its commands with it, once it cannot come back.
			name:      "killed client",
			flags:     []string{"--detached-session-ttl", "2s"},
			model:     responses.Script(responses.Say(shell("tree", `"$HELPER" tree up child`))),
			meanwhile: killClient,
		},
		{
			// The same with a child that has made a session of its own.
			name:      "killed client, daemon",
			flags:     []string{"--detached-session-ttl", "2s"},
			model:     responses.Script(responses.Say(shell("tree", `"$HELPER" tree up daemon`))),
			meanwhile: killClient,
		},
	})
}

// killClient kills the client when its command has written the file "up", and waits for
// the end of all that the server has started.
func killClient(t *testing.T, r *run) {
	if runtime.GOOS != "linux" {
		t.Skip("finds processes in /proc")
	}
	r.await(t, "up")
	if running := r.commands(t); len(running) < 2 {
		t.Errorf("the server has started %v, want the command and its child", running)
	}
	r.local.stop(syscall.SIGKILL)
	waitFor(t, testkit.Patience, func() error { return noneOf(r.commands(t)) })
}
