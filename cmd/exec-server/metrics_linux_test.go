package main

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"execserver/internal/testkit"
)

// TestMetricsListen reads metrics over TLS, at an address of their own, with a token that
// may observe. Nothing else gets them there, and they are nowhere else.
func TestMetricsListen(t *testing.T) {
	t.Parallel()
	authority := testkit.NewAuthority(t, "ours")
	cert, key := authority.Server()
	entry := func(name, scope string) string {
		return fmt.Sprintf("[[token]]\nname = %q\nsha256 = \"%x\"\nscope = [%q]\n", name, sha256.Sum256([]byte("the token of "+name)), scope)
	}
	p := newServer(t, "--listen=wss://127.0.0.1:0", "--tls-cert", cert, "--tls-key", key,
		"--tokens", writeFile(t, entry("ann", "exec")+entry("prometheus", "observe")), "--metrics-listen=localhost:0")
	var listening []string
	testkit.WaitFor(t, testkit.Patience, func() error {
		listening = regexp.MustCompile(`exec-server metrics on (https://\S+)/metrics`).FindStringSubmatch(p.stderr.text())
		if listening == nil {
			return fmt.Errorf("the server does not say where its metrics are: %s", p.stderr.text())
		}
		return nil
	})
	browser := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority.Roots()}, DisableKeepAlives: true}}
	own := strings.Replace(listening[1], "localhost", "127.0.0.1", 1)
	main := strings.Replace(p.url, "wss://", "https://", 1)
	for _, row := range []struct {
		url, token string
		status     int
		body       string
	}{
		{own + "/metrics", "the token of prometheus", 200, "exec_server_processes 0"},
		{own + "/metrics", "the token of ann", 403, "these credentials do not allow metrics"},
		{own + "/metrics", "", 401, "missing websocket bearer token"},
		{own + "/metrics", "the token of nobody", 401, "invalid websocket bearer token"},
		{own + "/healthz", "", 200, ""},
		{own + "/", "the token of prometheus", 404, ""},
		{main + "/metrics", "the token of prometheus", 200, "exec_server_processes 0"},
		{main + "/metrics", "the token of ann", 403, "these credentials do not allow metrics"},
		{strings.Replace(own, "https", "http", 1) + "/metrics", "the token of prometheus", 400, "HTTPS"},
	} {
		r, err := http.NewRequest(http.MethodGet, row.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if row.token != "" {
			r.Header.Set("Authorization", "Bearer "+row.token)
		}
		answer, err := browser.Do(r)
		if err != nil {
			t.Errorf("%s: %v", row.url, err)
			continue
		}
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != row.status || !strings.Contains(string(body), row.body) {
			t.Errorf("%s with %q: %d %.100q, %v; want %d %q", row.url, row.token, answer.StatusCode, body, err, row.status, row.body)
		}
	}
}
