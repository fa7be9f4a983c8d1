package codex

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
)

// TestOtherMachine shows the trap of docs/codex.md: with include_local = false, too, a client that
// cannot reach its default machine works on another one of environments.toml. It does not with a
// file for each machine.
func TestOtherMachine(t *testing.T) {
	configure := func(other bool) func(t testing.TB, r *run, program string) {
		return func(t testing.TB, r *run, program string) {
			text := fmt.Sprintf("default = \"down\"\ninclude_local = false\n[[environments]]\nid = \"down\"\nurl = \"ws://%s\"\n", testkit.FreeAddress(t))
			if other {
				text += "[[environments]]\nid = \"other\"\n" + stdioEnvironment(t, []string{program, "--listen", "stdio"})
			}
			r.write(t, "codex/environments.toml", text)
		}
	}
	model := responses.Script(responses.Say(shell("where", "echo ran >ran")))
	ran := func(t *testing.T, r *run) bool {
		_, err := os.Stat(r.work + "/ran")
		return err == nil
	}
	play(t, []scenario{{
		name: "other machine",
		only: startsPrograms, onlyOurs: true,
		configure: configure(true), model: model,
		check: func(t *testing.T, r *run) {
			if !ran(t, r) {
				t.Error("the client does not use the other machine any more: correct docs/codex.md, doctor and codex-config add")
			}
		},
	}, {
		name: "no other machine",
		only: startsPrograms, onlyOurs: true,
		configure: configure(false), model: model,
		check: func(t *testing.T, r *run) {
			if ran(t, r) {
				t.Errorf("the client ran a command although its only machine is down: %s", strings.Join(r.env(), " "))
			}
		},
	}})
}
