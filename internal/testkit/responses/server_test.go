package responses_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"execserver/internal/testkit/responses"
)

// ask sends a request as Codex does and returns the types and data of the events.
func ask(t *testing.T, url, body string) (types []string, data []json.RawMessage) {
	t.Helper()
	resp, err := http.Post(url+"/responses", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Fatalf("%s %q: %s", resp.Status, got, text)
	}
	for _, event := range strings.Split(strings.TrimSuffix(string(text), "\n\n"), "\n\n") {
		first, second, _ := strings.Cut(event, "\n")
		types = append(types, strings.TrimPrefix(first, "event: "))
		data = append(data, json.RawMessage(strings.TrimPrefix(second, "data: ")))
	}
	return types, data
}

func TestConversation(t *testing.T) {
	server := responses.Start(responses.Script(
		responses.Say(responses.Call("c1", "exec_command", map[string]any{"cmd": "date"})),
		func(r *responses.Request) []responses.Item {
			out, ok := r.Output("c1")
			if !ok {
				t.Error("the second step does not see the output of c1")
			}
			return []responses.Item{responses.CustomCall("c2", "apply_patch", out.Text())}
		},
	))
	defer server.Close()

	types, data := ask(t, server.URL(), `{"model":"m","tools":[{"type":"function","name":"exec_command"}],"input":[
		{"type":"message","role":"user","content":[{"type":"input_text","text":"hello"}]}]}`)
	want := "response.created response.output_item.added response.output_item.done response.completed"
	if got := strings.Join(types, " "); got != want {
		t.Errorf("events are %s, want %s", got, want)
	}
	var done struct{ Item responses.Item }
	if err := json.Unmarshal(data[2], &done); err != nil {
		t.Fatal(err)
	}
	if got := done.Item; got.Type != "function_call" || got.CallID != "c1" || got.Arguments != `{"cmd":"date"}` {
		t.Errorf("first answer is %+v, want the call c1", got)
	}

	_, data = ask(t, server.URL(), `{"input":[{"type":"function_call_output","call_id":"c1","output":"Friday"}]}`)
	if err := json.Unmarshal(data[2], &done); err != nil {
		t.Fatal(err)
	}
	if got := done.Item; got.Type != "custom_tool_call" || got.Input != "Friday" {
		t.Errorf("second answer is %+v, want the call c2 with what c1 gave", got)
	}

	_, data = ask(t, server.URL(), `{"input":[{"type":"custom_tool_call_output","call_id":"c2","output":[{"type":"input_text","text":"no "},{"type":"input_text","text":"patch"}]}]}`)
	if err := json.Unmarshal(data[2], &done); err != nil {
		t.Fatal(err)
	}
	if got := done.Item; got.Type != "message" || got.Text() != "done" {
		t.Errorf("third answer is %+v, want a message done", got)
	}

	for id, want := range map[string]string{"c1": "Friday", "c2": "no patch"} {
		if out, ok := server.Output(id); !ok || out.Text() != want {
			t.Errorf("output of %s is %q, %v; want %q", id, out.Text(), ok, want)
		}
	}
	if _, ok := server.Output("c3"); ok {
		t.Error("there is an output of c3, which was never called")
	}
	requests := server.Requests()
	if len(requests) != 3 {
		t.Fatalf("%d requests, want 3", len(requests))
	}
	if r := requests[0]; r.Model != "m" || len(r.Tools) != 1 || r.Tools[0].Name != "exec_command" || r.Input[0].Text() != "hello" {
		t.Errorf("first request is %s", r.Body)
	}
}

func TestOtherRequests(t *testing.T) {
	server := responses.Start(responses.Script())
	defer server.Close()
	resp, err := http.Get(server.URL() + "/models?x=1")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("status is %s, want 404", resp.Status)
	}
	if got := server.Other(); len(got) != 1 || got[0] != "GET /v1/models?x=1" {
		t.Errorf("other requests are %q", got)
	}
	resp, err = http.Post(server.URL()+"/responses", "application/json", strings.NewReader("{"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("status for half a request is %s, want 400", resp.Status)
	}
}
