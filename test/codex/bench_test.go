//go:build unix

package codex

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"execserver/internal/responses"
)

// BenchmarkCommand measures one command as the model sees it: from the answer in which the
// model asks for it to the request that tells what came of it. Codex 0.169 runs the command
// by this server, by the server of its own release, and on its own machine without a server.
// The three take turns, so that a machine whose speed drifts is fair to all.
func BenchmarkCommand(b *testing.B) {
	if os.Getenv("EXEC_SERVER_TEST_CODEX") != "1" {
		b.Skip("needs an installed Codex client: set EXEC_SERVER_TEST_CODEX=1")
	}
	places := []struct{ name, server, environments string }{
		{name: "ours"},
		{name: "released", server: "codex"},
		{name: "local", environments: "include_local = true\n"},
	}
	took := make([][]time.Duration, len(places))
	for b.Loop() {
		for i, place := range places {
			b.Setenv("EXEC_SERVER_COMMAND", place.server)
			took[i] = append(took[i], timeCommands(b, place.environments)...)
		}
	}
	for i, place := range places {
		slices.Sort(took[i])
		b.ReportMetric(took[i][len(took[i])/2].Seconds()*1000, place.name+"-p50-ms")
		b.ReportMetric(took[i][len(took[i])*9/10].Seconds()*1000, place.name+"-p90-ms")
	}
}

// timeCommands has a client run 20 commands, one after the other, and returns how long each
// took. environments replaces the client's environments.toml if it is not empty.
func timeCommands(b *testing.B, environments string) []time.Duration {
	const commands = 20
	var asked time.Time
	var took []time.Duration
	r := newRun(b, client{version: newest}, scenario{model: func(req *responses.Request) []responses.Item {
		if req.N > 0 {
			took = append(took, time.Since(asked))
		}
		if req.N == commands {
			return []responses.Item{responses.Message("done")}
		}
		asked = time.Now()
		return []responses.Item{shell(fmt.Sprintf("command %d", req.N), "echo hello")}
	}})
	defer r.close(b)
	if environments != "" {
		r.write(b, "codex/environments.toml", environments)
	}
	r.startClient(b)
	r.waitClient(b)
	for i := range commands {
		id := fmt.Sprintf("command %d", i)
		out, _ := r.model.Output(id)
		if got := parseResult(out.Text()); got.exit != 0 || got.output != "hello\n" {
			b.Fatalf("%s: the model was told %s", id, got.text)
		}
	}
	return took[1:] // the first connects as well
}
