//go:build unix

package codex

import (
	"testing"

	"execserver/internal/testkit/responses"
)

// Clients that come and go leave sessions that are kept for a while, in case they
// come back. There is always room for another client.
func TestClientsThatHaveGoneMakeRoom(t *testing.T) {
	play(t, []scenario{{
		name:     "room",
		only:     func(c client) bool { return !c.stdio },
		onlyOurs: true,
		flags:    []string{"--max-sessions", "1"},
		model: responses.Script(responses.Say(shell("one", "echo one")), responses.Say(responses.Message("done")),
			responses.Say(shell("two", "echo two"))),
		meanwhile: func(t *testing.T, r *run) {
			r.waitClient(t)
			r.startClient(t)
			r.waitClient(t)
		},
		check: wants("two", 0, "two\n"),
	}})
}
