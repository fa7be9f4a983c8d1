//go:build unix

package codex

import (
	"os"
	"path/filepath"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
)

// resumes picks clients that come back. Those up to 0.141 give up a command whose connection
// breaks, and a pipe does not break.
func resumes(c client) bool { return c.version != oldest && !c.stdio }

func TestLink(t *testing.T) {
	play(t, []scenario{
		{
			// What the command writes while nobody is connected is there afterwards.
			name:   "broken connection",
			only:   resumes,
			linked: true,
			model: responses.Script(responses.Say(shell("late",
				`echo one; touch up; "$HELPER" await go; echo two; touch written; exit 5`))),
			meanwhile: func(t *testing.T, r *run) {
				r.await(t, "up")
				r.cutLink(t)
				r.write(t, "work/go", "")
				r.await(t, "written")
				r.mendLink()
				r.waitClient(t)
			},
			check: wants("late", 5, "one\ntwo\n"),
		},
		{
			// The command goes on after the client came back, in both directions.
			name:   "broken connection, tty",
			only:   resumes,
			linked: true,
			model: responses.Script(
				responses.Say(shellWith("ask", `touch up; read word; echo "<$word>"`, object{"tty": true, "yield_time_ms": 2000})),
				typeInto("ask", "answer", "Ada\n", 10000),
			),
			meanwhile: func(t *testing.T, r *run) {
				r.await(t, "up")
				r.cutLink(t)
				r.mendLink()
				r.waitClient(t)
			},
			check: func(t *testing.T, r *run) { r.want(t, "answer", 0, "Ada\r\n<Ada>\r\n") },
		},
	})
}

// cutLink breaks the connections of the client, of which there must be some. New ones wait, or
// the client gives up.
func (r *run) cutLink(t *testing.T) {
	t.Helper()
	if !r.link.Set(testkit.LinkBroken) {
		t.Error("the client does not use the link")
	}
}

func (r *run) mendLink() { r.link.Set(testkit.LinkOpen) }

// await waits for a file in the work folder, which a command makes.
func (r *run) await(t *testing.T, name string) {
	t.Helper()
	waitFor(t, testkit.Patience, func() error {
		_, err := os.Stat(filepath.Join(r.work, name))
		return err
	})
}
