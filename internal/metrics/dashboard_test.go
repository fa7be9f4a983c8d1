//go:build unix

package metrics_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"execserver/server"
)

// dashboard is what the test needs of a dashboard of Grafana.
type dashboard struct {
	Title         string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Query string }
	}
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ RefID, Expr string }
	}
}

// TestDashboard checks that the dashboard for Grafana asks only for metrics and labels that
// a server shows, and for every metric of its own. Panels must not overlap.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "grafana", "exec-server.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.Title == "" || d.SchemaVersion == 0 || len(d.Panels) < 10 {
		t.Fatalf("%q, schema %d, %d panels", d.Title, d.SchemaVersion, len(d.Panels))
	}
	address := serve(t, &server.Options{Auth: server.Unauthenticated})
	dial(t, address, "")
	_, scrape := get(t, address, "/metrics", "")
	shown := make(map[string]string) // by metric, a line of it
	for line := range strings.Lines(scrape) {
		if name := regexp.MustCompile(`^[a-z_]+`).FindString(line); name != "" {
			shown[name] += line
		}
	}
	asked := make(map[string]bool)
	metric := regexp.MustCompile(`\b(?:exec_server|process|go)_[a-z_]+`)
	taken := make(map[[2]int]string)
	ids := make(map[int]bool)
	for _, p := range d.Panels {
		if ids[p.ID] || len(p.Targets) == 0 {
			t.Errorf("%s: id %d, %d queries", p.Title, p.ID, len(p.Targets))
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%q at %d,%d: there is %q, and the width is 24", p.Title, x, y, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			names := metric.FindAllString(target.Expr, -1)
			if len(names) == 0 || strings.Count(target.Expr, "(") != strings.Count(target.Expr, ")") {
				t.Errorf("%s: %s", p.Title, target.Expr)
			}
			for _, name := range names {
				asked[name] = true
				if shown[name] == "" {
					t.Errorf("%s: the server has no %s", p.Title, name)
				}
			}
			if by := regexp.MustCompile(`by \((.*?)\)`).FindStringSubmatch(target.Expr); by != nil {
				for label := range strings.SplitSeq(by[1], ", ") {
					if !strings.Contains(shown[names[0]], label+`="`) {
						t.Errorf("%s: %s has no label %s", p.Title, names[0], label)
					}
				}
			}
		}
	}
	for name := range shown {
		if strings.HasPrefix(name, "exec_server_") && !asked[name] && !strings.HasSuffix(name, "_seconds_sum") && !strings.HasSuffix(name, "_seconds_count") {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
	for _, v := range d.Templating.List {
		if name := metric.FindString(v.Query); name != "" && shown[name] == "" {
			t.Errorf("variable %s: the server has no %s", v.Name, name)
		}
	}
}

// TestNames has Prometheus's own linter look at the names, units and help texts.
func TestNames(t *testing.T) {
	address := serve(t, &server.Options{Auth: server.Unauthenticated})
	dial(t, address, "")
	status, scrape := get(t, address, "/metrics", "")
	if status != http.StatusOK {
		t.Fatal(status)
	}
	problems, err := promlint.New(strings.NewReader(scrape)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	problems = slices.DeleteFunc(problems, func(p promlint.Problem) bool { return !strings.HasPrefix(p.Metric, "exec_server_") })
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
