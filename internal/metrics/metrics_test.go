//go:build unix

package metrics_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execserver/client"
	"execserver/internal/metrics"
	"execserver/internal/testkit"
	"execserver/server"
)

// serve starts a server with metrics and returns its address.
func serve(t *testing.T, opts *server.Options) (address string) {
	t.Helper()
	opts.Metrics = metrics.Handler
	srv := server.New(opts)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.ServeWebSocket(listener)
	t.Cleanup(func() {
		if err := srv.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

func get(t *testing.T, address, path, token string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func dial(t *testing.T, address, token string) *client.Environment {
	t.Helper()
	env, err := client.Dial(t.Context(), "ws://"+address, &client.Options{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Close() }) // a test may have closed it
	return env
}

// values scrapes a server, and returns the values by metric with labels.
func values(t *testing.T, address string) map[string]string {
	t.Helper()
	status, body := get(t, address, "/metrics", "")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	found := make(map[string]string)
	for line := range strings.Lines(body) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			found[name] = value
		}
	}
	return found
}

// TestCounts runs commands and looks for them in the metrics.
func TestCounts(t *testing.T) {
	address := serve(t, &server.Options{Auth: server.Unauthenticated, Session: server.SessionOptions{RetainedBytes: 4096}})
	env := dial(t, address, "")
	run := func(argv ...string) error { return env.Command(t.Context(), argv[0], argv[1:]...).Run() }
	_ = run("/bin/sh", "-c", "exit 3")
	_ = run("/bin/sh", "-c", "kill -TERM $$")
	if err := run("/nothing/here"); err == nil {
		t.Fatal("a program that does not exist ran")
	}
	if out, err := env.Command(t.Context(), "/bin/sh", "-c", "head -c 100000 /dev/zero").Output(); err != nil || len(out) != 100000 {
		t.Fatalf("%d bytes, %v", len(out), err)
	}
	sleeper := env.Command(t.Context(), "/bin/sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := env.FS("/").ReadFile("etc/passwd"); err != nil {
		t.Fatal(err)
	}
	_, _ = get(t, address, "/", "") // no upgrade
	want := map[string]string{
		`exec_server_processes`:                                                "1",
		`exec_server_processes_started_total`:                                  "4",
		`exec_server_processes_ended_total{ended_by="self",result="success"}`:  "1",
		`exec_server_processes_ended_total{ended_by="self",result="failure"}`:  "1",
		`exec_server_processes_ended_total{ended_by="self",result="signal"}`:   "1",
		`exec_server_processes_ended_total{ended_by="client",result="signal"}`: "0",
		`exec_server_process_start_failures_total{reason="failed"}`:            "1",
		`exec_server_process_start_duration_seconds_count`:                     "4",
		`exec_server_process_start_duration_seconds_bucket{le="+Inf"}`:         "4",
		`exec_server_output_bytes_total`:                                       "100000",
		`exec_server_output_dropped_bytes_total`:                               "0",
		`exec_server_output_retained_limit_bytes`:                              "5.36870912e+08",
		`exec_server_sessions{state="attached"}`:                               "1",
		`exec_server_sessions{state="detached"}`:                               "0",
		`exec_server_connections{state="owner"}`:                               "1",
		`exec_server_connections_opened_total`:                                 "1",
		`exec_server_refusals_total{reason="upgrade"}`:                         "1",
		`exec_server_requests_total{method="process/start"}`:                   "5",
		`exec_server_sessions_created_total`:                                   "1",
		`exec_server_audit_lost_events_total`:                                  "0",
	}
	got := values(t, address)
	for name := range got {
		if _, known := want[name]; !known {
			delete(got, name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := sleeper.Process.Terminate(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	_ = sleeper.Wait()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := values(t, address)["exec_server_processes"]; n != "0" {
			return fmt.Errorf("%s processes", n)
		}
		return nil
	})
}

// documented returns the metrics of the scrape as the rows of docs/operations.md spell them.
func documented(t *testing.T, scrape string) (rows []string) {
	types := make(map[string]string)
	labels := make(map[string][]string)
	var names []string
	sample := regexp.MustCompile(`^([a-z_]+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? `)
	for line := range strings.Lines(scrape) {
		var name, kind string
		if n, _ := fmt.Sscanf(line, "# TYPE %s %s", &name, &kind); n == 2 && strings.HasPrefix(name, "exec_server_") {
			types[name] = kind
			names = append(names, name)
		} else if m := sample.FindStringSubmatch(line); m != nil && types[m[1]] != "" {
			for _, label := range regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(labels[m[1]], label[1]) && label[1] != "le" {
					labels[m[1]] = append(labels[m[1]], label[1])
				}
			}
		}
	}
	for _, name := range names {
		slices.Sort(labels[name])
		rows = append(rows, fmt.Sprintf("%s %s %s", name, types[name], strings.Join(labels[name], " ")))
	}
	if len(rows) < 20 {
		t.Errorf("only %d metrics in:\n%s", len(rows), scrape)
	}
	return rows
}

// TestDocument compares the table of metrics in docs/operations.md with a scrape.
func TestDocument(t *testing.T) {
	file, err := os.Open(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var want []string
	for lines := bufio.NewScanner(file); lines.Scan(); {
		cells := strings.Split(lines.Text(), "|")
		if len(cells) < 5 || !strings.HasPrefix(cells[1], " `exec_server_") {
			continue
		}
		words := strings.FieldsFunc(cells[3], func(r rune) bool { return strings.ContainsRune("`, ", r) })
		slices.Sort(words)
		want = append(want, fmt.Sprintf("%s %s %s", strings.Trim(cells[1], " `"), strings.TrimSpace(cells[2]), strings.Join(words, " ")))
	}
	address := serve(t, &server.Options{Auth: server.Unauthenticated})
	dial(t, address, "") // or there are no requests
	_, scrape := get(t, address, "/metrics", "")
	got := documented(t, scrape)
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-docs/operations.md +server:\n%s", diff)
	}
}

// TestWhoMayRead scrapes with tokens of several scopes.
func TestWhoMayRead(t *testing.T) {
	var file strings.Builder
	for name, more := range map[string]string{
		"observer": `scope = ["observe"]`, "owner": `scope = ["full"]`, "reader": "scope = [\"files\"]\nroot = \"/tmp\"",
	} {
		fmt.Fprintf(&file, "[[token]]\nname = %q\nsha256 = \"%x\"\n%s\n", name, sha256.Sum256([]byte("the token of "+name)), more)
	}
	path := filepath.Join(t.TempDir(), "tokens.toml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	auth, err := server.NewAuthenticator(server.AuthConfig{TokensFile: path})
	if err != nil {
		t.Fatal(err)
	}
	address := serve(t, &server.Options{Auth: auth})
	for token, want := range map[string]int{
		"": http.StatusUnauthorized, "a token of nobody's": http.StatusUnauthorized, "the token of reader": http.StatusForbidden,
		"the token of observer": http.StatusOK, "the token of owner": http.StatusOK,
	} {
		status, body := get(t, address, "/metrics", token)
		if status != want || strings.Contains(body, "exec_server_") != (want == http.StatusOK) {
			t.Errorf("%q: %d, want %d; %.100s", token, status, want, body)
		}
	}
	_, body := get(t, address, "/metrics", "the token of owner")
	for _, want := range []string{`{reason="credentials"} 2`, `{reason="scope"} 1`} {
		if !strings.Contains(body, "exec_server_refusals_total"+want) {
			t.Errorf("no %s", want)
		}
	}
}

// TestReady fills a server with sessions, and then lets one become idle.
func TestReady(t *testing.T) {
	address := serve(t, &server.Options{Auth: server.Unauthenticated, Session: server.SessionOptions{MaxSessions: 1}})
	ready := func(want int, text string) {
		t.Helper()
		testkit.WaitFor(t, testkit.Patience, func() error {
			if status, body := get(t, address, "/readyz", ""); status != want || body != text {
				return fmt.Errorf("/readyz: %d %q, want %d %q", status, body, want, text)
			}
			return nil
		})
		if status, _ := get(t, address, "/healthz", ""); status != http.StatusOK {
			t.Errorf("/healthz: %d", status)
		}
	}
	ready(http.StatusOK, "")
	env := dial(t, address, "")
	ready(http.StatusServiceUnavailable, "the server has its limit of sessions, and none is idle")
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	ready(http.StatusOK, "")
}

// serveMetrics serves the metrics of a server at an address of their own, until the test ends.
func serveMetrics(t *testing.T) (srv *server.Server, address string) {
	t.Helper()
	srv = server.New(&server.Options{Auth: server.Unauthenticated})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.ServeMetrics(listener, metrics.Handler) }()
	t.Cleanup(func() {
		if err := srv.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != server.ErrClosed {
			t.Errorf("after Shutdown: %v", err)
		}
	})
	return srv, listener.Addr().String()
}

// TestReadyWhileDraining drains a server, which then refuses every new client.
func TestReadyWhileDraining(t *testing.T) {
	srv, address := serveMetrics(t)
	if status, body := get(t, address, "/readyz", ""); status != http.StatusOK {
		t.Errorf("/readyz before the drain: %d %q", status, body)
	}
	srv.Drain()
	want := "the server is draining: it takes no new sessions"
	if status, body := get(t, address, "/readyz", ""); status != http.StatusServiceUnavailable || body != want {
		t.Errorf("/readyz: %d %q, want 503 %q", status, body, want)
	}
	if status, body := get(t, address, "/healthz", ""); status != http.StatusOK {
		t.Errorf("/healthz: %d %q", status, body)
	}
}

// TestListener serves metrics at an address of their own.
func TestListener(t *testing.T) {
	_, address := serveMetrics(t)
	for path, want := range map[string]int{
		"/metrics": http.StatusOK, "/healthz": http.StatusOK, "/readyz": http.StatusOK, "/": http.StatusNotFound, "/metrics/": http.StatusNotFound,
	} {
		if status, body := get(t, address, path, ""); status != want {
			t.Errorf("%s: %d %q, want %d", path, status, body, want)
		}
	}
}
