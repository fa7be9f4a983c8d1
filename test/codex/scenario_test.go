//go:build unix

package codex

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"execserver/internal/testkit/responses"
)

// A scenario is a conversation with a client, and what must come of it.
type scenario struct {
	name string

	// only picks clients. If nil, all play.
	only func(client) bool

	// onlyOurs is a scenario for things that no other server promises.
	onlyOurs bool

	// flags are for a server that the client dials. One that is not ours may not know them,
	// so it is spared the scenario.
	flags []string

	// doors are further flags, about listening. A server that has joined a gateway leaves
	// them to that.
	doors []string

	// far gives a server that the client dials a work folder of its own, where that is
	// possible: what is found and changed there cannot be the client's doing.
	far bool

	// sandbox gives the client's arguments about a sandbox. If nil, it uses none.
	sandbox func(*run) []string

	// secure has the server use the certificates and the token of docs/security.md, which
	// are in its work folder.
	secure bool

	// connect leads a client to a server by other means than starting it here. The function
	// that it returns makes the command that does so for a client that dials a URL, or that
	// starts the command itself if url is stdio. No gateway takes part.
	connect func(t testing.TB, r *run, program string) func(url string) []string

	// configure makes the client know a server, in the place of the run. No gateway takes
	// part.
	configure func(t testing.TB, r *run, program string)

	// linked puts a link between client and server, for meanwhile to cut.
	linked bool

	// prepare fills the run's folders. May be nil.
	prepare func(*testing.T, *run)

	// model has the client do things.
	model responses.Model

	// meanwhile runs while the client works. If nil, the client is left alone until it ends.
	meanwhile func(*testing.T, *run)

	// check looks at what came of it, mostly at what the model was told.
	check func(*testing.T, *run)
}

// play plays all scenarios with all clients.
func play(t *testing.T, scenarios []scenario) {
	if os.Getenv("EXEC_SERVER_TEST_CODEX") != "1" {
		t.Skip("needs installed Codex clients: set EXEC_SERVER_TEST_CODEX=1, or run make test-codex")
	}
	for _, s := range scenarios {
		for _, c := range clients {
			if s.only != nil && !s.only(c) || c.gateway && (s.connect != nil || s.configure != nil) {
				continue
			}
			t.Run(s.name+"/"+c.String(), func(t *testing.T) {
				t.Parallel()
				if command, ours := serverCommand(t, c); !ours && (s.onlyOurs || c.gateway) {
					t.Skipf("%s does not promise this", command[0])
				}
				r := newRun(t, c, s)
				if s.prepare != nil {
					s.prepare(t, r)
				}
				r.startClient(t)
				if s.meanwhile != nil {
					s.meanwhile(t, r)
				} else {
					r.waitClient(t)
				}
				if s.check != nil {
					s.check(t, r)
				}
			})
		}
	}
}

// object is the arguments of a tool.
type object map[string]any

// shell is a call that runs a command. The client waits 30 s for it before it yields.
func shell(id, command string) responses.Item {
	return shellWith(id, command, object{"yield_time_ms": 30000})
}

// shellWith is a call that runs a command with further arguments of exec_command.
func shellWith(id, command string, more object) responses.Item {
	args := object{"cmd": command}
	for name, value := range more {
		args[name] = value
	}
	return responses.Call(id, "exec_command", args)
}

// typeInto is a step that writes to the command which the call named command has started.
// With chars empty it waits for more output.
func typeInto(command, id, chars string, yieldMillis int) responses.Model {
	return func(r *responses.Request) []responses.Item {
		out, _ := r.Output(command)
		session := parseResult(out.Text()).session
		if session == 0 {
			return []responses.Item{responses.Message(command + " does not run")}
		}
		return []responses.Item{responses.Call(id, "write_stdin", object{
			"session_id": session, "chars": chars, "yield_time_ms": yieldMillis,
		})}
	}
}

// wantTyped expects what a command prints that asks for a name and greets, in the results of
// both calls. A command that is late asks after the name has been typed.
func (r *run) wantTyped(t *testing.T, ask, answer string) {
	t.Helper()
	asked, answered := r.result(t, ask), r.result(t, answer)
	got := asked.output + answered.output
	if want := "Ada\r\nhello Ada\r\n"; answered.exit != 0 || !strings.Contains(got, "name? ") || strings.Replace(got, "name? ", "", 1) != want {
		t.Errorf("exit %d, output %q; want 0, and %q with a question", answered.exit, got, want)
	}
}

// A result is what the model is told about a command.
type result struct {
	exit    int // -1 while it runs
	session int // to write to it, 0 once it has ended
	output  string
	text    string // all of it
}

var (
	exitLine    = regexp.MustCompile(`(?m)^Process exited with code (-?\d+)$`)
	sessionLine = regexp.MustCompile(`(?m)^Process running with session ID (\d+)$`)
)

func parseResult(text string) result {
	head, output, _ := strings.Cut(text, "\nOutput:\n")
	res := result{exit: -1, output: output, text: text}
	if m := exitLine.FindStringSubmatch(head); m != nil {
		res.exit, _ = strconv.Atoi(m[1])
	}
	if m := sessionLine.FindStringSubmatch(head); m != nil {
		res.session, _ = strconv.Atoi(m[1])
	}
	return res
}

// result returns what the model was told about a call.
func (r *run) result(t *testing.T, id string) result {
	t.Helper()
	out, ok := r.model.Output(id)
	if !ok {
		t.Fatalf("the model was told nothing about call %s", id)
	}
	return parseResult(out.Text())
}

// want checks a call that ran a command to its end.
func (r *run) want(t *testing.T, id string, exit int, output string) {
	t.Helper()
	if got := r.result(t, id); got.exit != exit || got.output != output {
		t.Errorf("call %s: exit %d, output %q; want %d, %q\nThe model was told: %s",
			id, got.exit, got.output, exit, output, abbreviate(got.text))
	}
}

// wants is a check for want alone.
func wants(id string, exit int, output string) func(*testing.T, *run) {
	return func(t *testing.T, r *run) { t.Helper(); r.want(t, id, exit, output) }
}

func abbreviate(text string) string {
	const keep = 400 // at each end
	if len(text) <= 2*keep {
		return text
	}
	return fmt.Sprintf("%s … (%d bytes) … %s", text[:keep], len(text)-2*keep, text[len(text)-keep:])
}
