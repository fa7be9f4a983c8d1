//go:build unix

package codex

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"execserver/internal/testkit/responses"
)

// mcpServer is a server of the Model Context Protocol with one resource, over HTTP. It
// never answers the request for its own events.
type mcpServer struct {
	http *httptest.Server
	done chan struct{}

	mu   sync.Mutex
	seen []string // method, name of the call, and authorization of all requests
}

func startMCP(t *testing.T) *mcpServer {
	s := &mcpServer{done: make(chan struct{})}
	s.http = httptest.NewServer(s)
	t.Cleanup(func() {
		close(s.done)
		s.http.Close()
	})
	return s
}

func (s *mcpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var call struct {
		ID     json.RawMessage
		Method string
		Params struct{ ProtocolVersion string }
	}
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&call); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	s.mu.Lock()
	s.seen = append(s.seen, strings.TrimSpace(r.Method+" "+call.Method)+": "+r.Header.Get("Authorization"))
	s.mu.Unlock()
	result := ""
	switch {
	case r.Method == http.MethodGet:
		select { // not even the header
		case <-r.Context().Done():
		case <-s.done:
		}
		return
	case call.Method == "initialize":
		result = fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"resources":{}},"serverInfo":{"name":"test","version":"1"}}`, call.Params.ProtocolVersion)
	case call.Method == "tools/list":
		result = `{"tools":[]}`
	case call.Method == "resources/read":
		result = `{"contents":[{"uri":"test://place","mimeType":"text/plain","text":"on this side"}]}`
	default:
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Mcp-Session-Id", "1")
	_, _ = fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", call.ID, result)
}

// TestMCP has the client reach an MCP server through the exec-server, with a token that only
// that has, while the MCP server leaves one request unanswered.
func TestMCP(t *testing.T) {
	mcp := startMCP(t)
	play(t, []scenario{{
		name: "resource",
		only: func(c client) bool { return c.version != oldest }, // it asks MCP servers itself
		prepare: func(t *testing.T, r *run) {
			path := filepath.Join(r.home, "config.toml")
			config, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			r.write(t, "codex/config.toml", string(config)+fmt.Sprintf(`
[mcp_servers.far]
url = "%s/mcp"
environment_id = "box"
bearer_token_env_var = %q
`, mcp.http.URL, sideVariable))
		},
		model: responses.Script(
			responses.Say(shell("command", "echo hello")),
			responses.Say(responses.Call("resource", "read_mcp_resource", object{"server": "far", "uri": "test://place"})),
		),
		check: func(t *testing.T, r *run) {
			r.want(t, "command", 0, "hello\n")
			if out, _ := r.model.Output("resource"); !strings.Contains(out.Text(), "on this side") {
				t.Errorf("the model read %q", out.Text())
			}
			mcp.mu.Lock()
			defer mcp.mu.Unlock()
			for _, seen := range mcp.seen {
				if !strings.HasSuffix(seen, ": Bearer server") {
					t.Errorf("the MCP server was asked %s", seen)
				}
			}
			if !slices.Contains(mcp.seen, "GET: Bearer server") {
				t.Errorf("the MCP server was asked %q, but not for its events", mcp.seen)
			}
		},
	}})
}
