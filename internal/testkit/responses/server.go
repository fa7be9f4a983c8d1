// Package responses is a model for tests: a small HTTP server that speaks enough of
// OpenAI's Responses API for an unmodified Codex client to have a conversation with it. A
// test passes a Model, which answers each request with tool calls or a last message.
// Afterwards the test examines what the client sent. Start with Start and Script.
package responses

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
)

// A Request is one request of the client to the model. Each holds the whole conversation
// so far.
type Request struct {
	// N numbers the requests to a server, from 0.
	N int `json:"-"`
	// Header and Body are the request as the client sent it.
	Header http.Header     `json:"-"`
	Body   json.RawMessage `json:"-"`

	Model        string `json:"model"`
	Instructions string `json:"instructions"`
	Input        []Item `json:"input"`
	Tools        []Tool `json:"tools"`
}

// A Tool is one that the client offers to the model.
type Tool struct {
	Type string `json:"type"`
	Name string `json:"name"`
}

// Output returns the output of the tool call with that id. ok is false if the client has
// sent none.
func (r *Request) Output(callID string) (_ Item, ok bool) {
	for _, it := range r.Input {
		if it.CallID == callID && strings.HasSuffix(it.Type, "_output") {
			return it, true
		}
	}
	return Item{}, false
}

// A Model answers a request. A server calls it from one goroutine at a time.
type Model func(*Request) []Item

// Script returns a model that passes the server's first request to the first step, the
// second to the second, and so on. After the last step it says "done".
func Script(steps ...Model) Model {
	return func(r *Request) []Item {
		if r.N < len(steps) {
			return steps[r.N](r)
		}
		return []Item{Message("done")}
	}
}

// Say returns a step that always gives the same answer.
func Say(items ...Item) Model {
	return func(*Request) []Item { return items }
}

// A Server is a running model. Close it when done.
type Server struct {
	http  *httptest.Server
	model Model

	mu       sync.Mutex // also held while model runs, so that requests reach it in order
	requests []*Request
	other    []string
}

// Start listens on a free loopback port.
func Start(model Model) *Server {
	s := &Server{model: model}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	return s
}

// URL returns the base URL for the client's configuration.
func (s *Server) URL() string { return s.http.URL + "/v1" }

// Close closes the connections of clients and stops listening.
func (s *Server) Close() {
	s.http.CloseClientConnections()
	s.http.Close()
}

// Requests returns the requests to the model so far.
func (s *Server) Requests() []*Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Request(nil), s.requests...)
}

// Other returns method and path of all other requests.
func (s *Server) Other() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.other...)
}

// Output returns the output of the tool call with that id, from the latest request that
// has it. ok is false if none has.
func (s *Server) Output(callID string) (_ Item, ok bool) {
	requests := s.Requests()
	for i := len(requests) - 1; i >= 0; i-- {
		if it, ok := requests[i].Output(callID); ok {
			return it, true
		}
	}
	return Item{}, false
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/responses") {
		s.mu.Lock()
		s.other = append(s.other, r.Method+" "+r.URL.String())
		s.mu.Unlock()
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	req := &Request{Header: r.Header.Clone(), Body: body}
	if err := json.Unmarshal(body, req); err != nil {
		http.Error(w, fmt.Sprintf("request body: %v", err), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	req.N = len(s.requests)
	s.requests = append(s.requests, req)
	items := s.model(req)
	s.mu.Unlock()

	w.Header().Set("Content-Type", "text/event-stream")
	stream(w, fmt.Sprintf("resp_%d", req.N), items)
}

// stream writes an answer as server-sent events.
func stream(w io.Writer, id string, items []Item) {
	send := func(event map[string]any) {
		data, err := json.Marshal(event)
		if err != nil {
			panic(err) // plain data always encodes
		}
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event["type"], data)
	}
	send(map[string]any{"type": "response.created", "response": map[string]any{"id": id}})
	for i, it := range items {
		send(map[string]any{"type": "response.output_item.added", "output_index": i, "item": it})
		send(map[string]any{"type": "response.output_item.done", "output_index": i, "item": it})
	}
	send(map[string]any{
		"type": "response.completed",
		"response": map[string]any{
			"id":     id,
			"output": items,
			"usage":  map[string]any{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
		},
	})
}
