// Package metrics tests the metrics of a server with the programs that read them: a real
// Prometheus, and the schema of Grafana's dashboards. Nothing that the project may use
// provides a Grafana.
package metrics

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"execserver/client"
	"execserver/internal/testkit"
)

const patience = time.Minute

const dashboardFile = "../../deploy/grafana/exec-server.json"

// TestDashboardSchema reads the dashboard as Grafana does, and refuses members that it does
// not know.
func TestDashboardSchema(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	text, err := os.ReadFile(dashboardFile)
	must(t, err)
	var d dashboard.Dashboard
	for what, err := range map[string]error{"read": d.UnmarshalJSONStrict(text), "check": d.Validate()} {
		// The library returns empty errors for what is right.
		if errs, ok := errors.AsType[cog.BuildErrors](err); err != nil && (!ok || len(errs) > 0) {
			t.Errorf("%s the dashboard: %v", what, err)
		}
	}
}

// TestPrometheus has a Prometheus scrape a server as docs/operations.md says, and asks it
// everything that the dashboard asks.
func TestPrometheus(t *testing.T) {
	testkit.System(t, "prometheus")
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	tokens := write("tokens.toml", fmt.Sprintf("[[token]]\nname = \"prometheus\"\nsha256 = \"%x\"\nscope = [\"observe\"]\n\n"+
		"[[token]]\nname = \"agent\"\nsha256 = \"%x\"\nscope = [\"full\"]\n",
		sha256.Sum256([]byte("token-of-prometheus-0123456789abcdef")), sha256.Sum256([]byte("token-of-the-agent-0123456789abcdef"))))
	token := write("token", "token-of-prometheus-0123456789abcdef")
	server := serve(t, dir, tokens)
	address := testkit.FreeAddress(t)
	config := write("prometheus.yml", fmt.Sprintf(`
global: {scrape_interval: 1s}
scrape_configs:
  - job_name: exec-server
    authorization:
      credentials_file: %s
    static_configs:
      - targets: ["%s"]
`, token, strings.TrimPrefix(server, "ws://")))
	command := exec.Command("prometheus", "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", address)
	run(t, command)

	env, err := client.Dial(t.Context(), server, &client.Options{Token: "token-of-the-agent-0123456789abcdef"})
	must(t, err)
	defer env.Close()
	work := func() {
		must(t, env.Command(t.Context(), "echo", "hello").Run())
		_ = env.Command(t.Context(), "false").Run()
		_ = env.Command(t.Context(), "no-such-program").Run()
	}
	p := prom{t, "http://" + address}
	// A rate needs two scrapes between which something happened.
	for end := time.Now().Add(patience); ; {
		work()
		if rate := p.query(`sum(rate(exec_server_processes_started_total[1m])) > 0`); len(rate) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("Prometheus does not see that processes start; up: %v", p.query("up"))
		}
		time.Sleep(200 * time.Millisecond) // the next scrape
	}
	for _, expression := range expressions(t) {
		for old, is := range map[string]string{"$job": ".*", "$instance": ".*", "$__rate_interval": "1m"} {
			expression = strings.ReplaceAll(expression, old, is)
		}
		got := p.query(expression)
		// What has not happened has no value where a label tells its kinds.
		if len(got) == 0 && !strings.Contains(expression, "sum by") {
			t.Errorf("Prometheus has no answer to %s", expression)
		}
	}
	if got := p.query(`exec_server_process_start_failures_total{reason="failed"}`); len(got) == 0 {
		t.Error("Prometheus has not seen the starts that failed")
	}
}

// expressions returns what the dashboard asks.
func expressions(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	must(t, err)
	var d struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	must(t, json.Unmarshal(text, &d))
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	if len(all) < 20 {
		t.Fatalf("the dashboard asks only %d things", len(all))
	}
	return all
}

// prom is a Prometheus.
type prom struct {
	t   *testing.T
	url string
}

// query returns what an expression yields now; nothing while Prometheus does not answer.
func (p prom) query(expression string) []any {
	p.t.Helper()
	response, err := http.Get(p.url + "/api/v1/query?query=" + url.QueryEscape(expression))
	if err != nil {
		return nil // it has not begun yet
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(p.t, err)
	if response.StatusCode == http.StatusServiceUnavailable {
		return nil
	}
	var answer struct {
		Status, Error string
		Data          struct{ Result []any }
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		p.t.Fatalf("Prometheus answers %s with %s", expression, body)
	}
	return answer.Data.Result
}

// serve starts a server, and returns its URL.
func serve(t *testing.T, dir, tokens string) string {
	t.Helper()
	program := filepath.Join(dir, "exec-server")
	build := exec.Command("go", "build", "-o", program, "./cmd/exec-server")
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build exec-server: %v\n%s", err, out)
	}
	command := exec.Command(program, "serve", "--listen", "ws://127.0.0.1:0", "--tokens", tokens, "--without", "supervisor")
	out, err := command.StdoutPipe()
	must(t, err)
	run(t, command)
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	return strings.TrimSpace(line)
}

// run starts a command that ends with the test.
func run(t *testing.T, command *exec.Cmd) {
	t.Helper()
	said, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	must(t, err)
	defer said.Close()
	command.Stderr = said
	must(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(said.Name())
			t.Logf("%s said:\n%s", command.Args[0], text)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
