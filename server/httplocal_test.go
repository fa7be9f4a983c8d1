//go:build unix

package server_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/server"
)

// Credentials with a sandbox send no HTTP requests to this machine: another server here
// would take them for those of this server's user.
func TestHTTPToThisMachineFromSandbox(t *testing.T) {
	other := server.New(&server.Options{Auth: server.Unauthenticated})
	t.Cleanup(func() { testkit.Shutdown(t, other) })
	neighbour := httptest.NewServer(other.Handler())
	defer neighbour.Close()
	as := serveTokens(t, server.Options{}, map[string]string{
		"owner":  `scope = ["full"]`,
		"inside": "scope = [\"full\"]\n[token.sandbox]\nread = [\"/\"]\nnetwork = true",
	})
	at, err := url.Parse(neighbour.URL)
	if err != nil {
		t.Fatal(err)
	}
	if got := newCaller(t, as("owner"), "").http(neighbour.URL+"/readyz", nil); got.Status != http.StatusOK {
		t.Errorf("without a sandbox: %d", got.Status)
	}
	inside := newCaller(t, as("inside"), "")
	upgrade := []params{
		{"name": "Connection", "value": "Upgrade"},
		{"name": "Upgrade", "value": "websocket"},
		{"name": "Sec-WebSocket-Version", "value": "13"},
		{"name": "Sec-WebSocket-Key", "value": "MTIzNDU2Nzg5MDEyMzQ1Ng=="},
	}
	for _, host := range []string{"127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]", "127.1.2.3"} {
		target := strings.Replace(neighbour.URL, at.Hostname(), host, 1)
		for _, headers := range [][]params{nil, upgrade} {
			inside.denied("http/request", httpParams(target, params{"headers": append([]params{}, headers...), "streamResponse": headers != nil}), "a connection to ")
		}
	}
}

// The server's own proxy may be on this machine.
func TestHTTPThroughLocalProxyFromSandbox(t *testing.T) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}))
	defer proxy.Close()
	t.Setenv("HTTP_PROXY", proxy.URL)
	as := serveTokens(t, server.Options{}, map[string]string{
		"inside": "scope = [\"full\"]\n[token.sandbox]\nread = [\"/\"]\nnetwork = true",
	})
	if got := newCaller(t, as("inside"), "").http("http://far.example/", nil); got.Status != http.StatusTeapot {
		t.Errorf("the proxy's answer is %d", got.Status)
	}
}
