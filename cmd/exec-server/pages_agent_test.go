package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAgentPage builds the program of docs/agents.md, and has it work here for a model that
// wants one command.
func TestAgentPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	programs := blocks(string(text), "go")
	if len(programs) != 1 {
		t.Fatalf("the page has %d programs, want 1", len(programs))
	}
	agent := buildPage(t, programs[0])

	if out, err := exec.Command(agent).CombinedOutput(); err == nil || string(out) != "usage: agent ENVIRONMENT TASK\n" {
		t.Errorf("without arguments the program says %q, %v", out, err)
	}

	var told string // the last request
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request struct{ Input []map[string]any }
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			t.Error(err)
		}
		answer := map[string]any{
			"type": "function_call", "call_id": "1", "name": "shell", "arguments": `{"command":"echo $((6 * 7)); exit 3"}`,
		}
		if last := request.Input[len(request.Input)-1]; last["type"] == "function_call_output" {
			told, _ = last["output"].(string)
			answer = map[string]any{"type": "message", "content": []any{map[string]any{"type": "output_text", "text": "I have counted."}}}
		}
		if err := json.NewEncoder(w).Encode(map[string]any{"output": []any{answer}}); err != nil {
			t.Error(err)
		}
	}))
	defer model.Close()
	command := exec.Command(agent, "local", "Count.")
	command.Env = append(os.Environ(), "OPENAI_BASE_URL="+model.URL)
	out, err := command.CombinedOutput()
	if err != nil || string(out) != "I have counted.\n" {
		t.Errorf("the program says %q, %v", out, err)
	}
	if want := "42\n\n[exit status 3]"; told != want {
		t.Errorf("the model was told %q, want %q", told, want)
	}
	out, err = exec.Command(agent, "nowhere", "Count.").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "nowhere") {
		t.Errorf("with an environment that does not exist the program says %q, %v", out, err)
	}
}

// buildPage builds a program of a page as a package of this module.
func buildPage(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	place, err := filepath.Abs(filepath.Join("..", "..", "examples", "page", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {place: source}})
	if err != nil {
		t.Fatal(err)
	}
	description := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(description, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	built := filepath.Join(dir, "agent")
	build := exec.Command("go", "build", "-overlay", description, "-o", built, filepath.Dir(place))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the program of the page does not compile: %v\n%s", err, out)
	}
	return built
}
