package server_test

import (
	"bufio"
	"encoding/json"
	"io"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execserver/server"
	"execserver/transport"
)

// logged returns the lines about requests that a server logs at a level, by id and without
// what varies. The connection ends when there are that many answers.
func logged(t *testing.T, level slog.Level, messages []string, answers int) map[string]map[string]any {
	t.Helper()
	lines := make(map[string]map[string]any)
	read, write := io.Pipe()
	srv := server.New(&server.Options{Log: slog.New(slog.NewJSONHandler(write, &slog.HandlerOptions{Level: level}))})
	ours, theirs := transport.Pipe(0)
	served := make(chan error, 1)
	go func() { served <- srv.ServeConn(theirs) }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer write.Close()
		for _, message := range messages {
			if err := ours.Write([]byte(message)); err != nil {
				t.Error(err)
			}
		}
		for range answers {
			if answer, err := ours.Read(nil); err != nil {
				t.Errorf("%s %v", answer, err)
			}
		}
		_ = ours.Close(transport.Reason{})
		<-served // or a process that the server ends could answer the read first
		if err := srv.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for scanner := bufio.NewScanner(read); scanner.Scan(); {
		var line map[string]any
		if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
			t.Fatalf("%s: %v", scanner.Bytes(), err)
		}
		if line["msg"] != "request" {
			continue
		}
		if duration, ok := line["duration"].(float64); !ok || duration < 0 {
			t.Errorf("a line without a duration: %s", scanner.Bytes())
		}
		for _, varies := range []string{"time", "duration", "remote", "level", "msg"} {
			delete(line, varies)
		}
		if id, _ := line["sessionId"].(string); id != "" {
			line["sessionId"] = "session"
		}
		id, _ := line["id"].(string)
		if lines[id] != nil {
			t.Errorf("request %s has two lines", id)
		}
		delete(line, "id")
		lines[id] = line
	}
	<-done
	return lines
}

// TestLogOfRequests makes requests that succeed, fail, do not exist, and are never answered.
func TestLogOfRequests(t *testing.T) {
	messages := []string{
		`{"id":1,"method":"initialize","params":{"clientName":"test"}}`, `{"method":"initialized"}`,
		`{"id":2,"method":"process/start","params":{"processId":"p","argv":["sleep","1000"],"cwd":"/","env":{"PATH":"/usr/bin:/bin"},"tty":false,"pipeStdin":false,"arg0":null}}`,
		`{"id":"three","method":"process/resize","params":{"processId":"p","size":{"rows":1,"cols":1}}}`,
		`{"id":4,"method":"no/such"}`,
		`{"id":5,"method":"process/read","params":{"processId":"p","waitMs":600000},"trace":{"traceparent":"00-1-2-01"}}`,
	}
	want := map[string]map[string]any{
		"1":       {"method": "initialize"},
		"2":       {"method": "process/start", "sessionId": "session", "processId": "p"},
		`"three"`: {"method": "process/resize", "sessionId": "session", "processId": "p", "error": "of three"},
		"4":       {"method": "unknown", "sessionId": "session", "error": "exec-server stub does not implement `no/such` yet"},
		"5":       {"method": "process/read", "sessionId": "session", "processId": "p", "error": "of five", "traceparent": "00-1-2-01"},
	}
	lines := logged(t, slog.LevelDebug, messages, 4)
	for id, as := range map[string]string{`"three"`: "of three", "5": "of five"} { // for people
		if line := lines[id]; line != nil && line["error"] != nil {
			line["error"] = as
		}
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
	if lines := logged(t, slog.LevelInfo, messages, 4); len(lines) > 0 {
		t.Errorf("logged at the level info: %v", lines)
	}
}
