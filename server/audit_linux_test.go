package server_test

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/web"
	"execserver/protocol"
	"execserver/server"
)

// audited is a request and the event that it leaves in the audit log; "" for one that
// changes and opens nothing, or only continues what is in the log.
type audited struct {
	method string
	event  string
	params params
}

// TestAuditOfEveryMethod calls every method and reads the audit log. It fails when a method
// is added about which nobody has decided whether it is logged.
func TestAuditOfEveryMethod(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	log, err := server.OpenAuditLog(path, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(log.Close)
	o := recordInto(t, nil)
	o.Audit = log
	o.Extensions.Page = web.New()
	as := serveTokens(t, o, map[string]string{"ann": `scope = ["full"]`})
	site := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(site.Close)
	l := farListener(t)
	dir := realTempDir(t)
	file := func(name string) string { return "file://" + dir + "/" + name }

	owner, other := newTCPCaller(t, as("ann")), sleeps(t, as("ann"))
	start := params{"processId": "p", "argv": []string{"/bin/sh", "-c", "cat; exec sleep 100"}, "cwd": "file:///", "env": params{}, "tty": false, "pipeStdin": true}
	terminal := params{"processId": "t", "argv": []string{"/bin/sleep", "100"}, "cwd": "file:///", "env": params{}, "tty": true}
	calls := []audited{
		{"environment/info", "", nil},
		{"environment/status", "", nil},
		{"environmentConfig/read", "", params{"environmentId": "e", "cwd": file(""), "configPaths": [][]string{{"a"}}, "requirementsPaths": []string{}}},
		{"capabilityRoots/discoverV1", "", params{"roots": []params{}}},

		{"process/start", "start", start},
		{"process/start", "start", terminal},
		{"process/write", "", params{"processId": "p", "chunk": "eA==", "writeId": "w"}}, // of a start that is in the log, as are the next two
		{"process/resize", "", params{"processId": "t", "size": params{"rows": 10, "cols": 10}}},
		{"process/closeStdin", "", params{"processId": "p"}},
		{"process/read", "", params{"processId": "p"}},
		{"process/readBackground", "", params{"processId": "p"}},
		{"process/wait", "", params{"processId": "p", "waitMs": 0}},
		{"process/snapshot", "", params{"processId": "p"}},
		{"process/screen", "", params{"processId": "t"}},
		{"process/list", "", nil},
		{"process/usage", "", params{}},
		{"process/signal", "signal", params{"processId": "p", "signal": "interrupt"}},
		{"process/terminate", "signal", params{"processId": "p"}},

		{"session/list", "", nil},
		{"recording/list", "", params{}},
		{"web/link", "link to the page", nil},
		{"session/keep", "session kept", params{"name": "n", "keepMs": 1000}},
		{"session/end", "session ended", params{"sessionId": other.SessionID}},

		{"fs/createDirectory", "change", params{"path": file("d"), "recursive": false}},
		{"fs/writeFile", "change", params{"path": file("f"), "dataBase64": "eA=="}},
		{"fs/copy", "change", params{"sourcePath": file("f"), "destinationPath": file("g"), "recursive": false}},
		{"fs/rename", "change", params{"sourcePath": file("g"), "destinationPath": file("h")}},
		{"fs/setMetadata", "change", params{"path": file("f"), "mode": 0o600}},
		{"fs/symlink", "change", params{"path": file("l"), "target": "f"}},
		{"fs/remove", "change", params{"path": file("h"), "recursive": false, "force": false}},
		{"fs/open", "", params{"handleId": "r", "path": file("f")}},
		{"fs/open", "change", params{"handleId": "h", "path": file("o"), "mode": "replace"}},
		{"fs/open", "change", params{"handleId": "u", "path": file("o"), "mode": "update"}},
		{"fs/readBlock", "", params{"handleId": "r", "offset": 0, "len": 1}},
		{"fs/writeBlock", "", params{"handleId": "u", "offset": 0, "chunk": "eA=="}}, // of a file whose opening is in the log, as is the next
		{"fs/close", "", params{"handleId": "h"}},
		{"fs/getMetadata", "", params{"path": file("f")}},
		{"fs/readFile", "", params{"path": file("f")}},
		{"fs/readDirectory", "", params{"path": file("")}},
		{"fs/walk", "", params{"path": file(""), "options": params{"followDirectorySymlinks": false, "maxDepth": 1, "maxDirectories": 1, "maxEntries": 1}}},
		{"fs/canonicalize", "", params{"path": file("f")}},
		{"fs/join", "", params{"basePath": file(""), "path": "f"}},
		{"fs/parent", "", params{"path": file("f")}},

		{"fs/readLink", "", params{"path": file("l")}},
		{"fs/watch", "", params{"watchId": "w", "path": file("")}},
		{"fs/unwatch", "", params{"watchId": "w"}},
		{"fs/watchMissing", "", params{"watchId": 1, "missing": []string{file("m")}}},

		{"http/request", "http request", params{"requestId": "r", "method": "GET", "url": site.URL, "headers": []params{}}},
		{"tcp/open", "tcp open", params{"streamId": "s", "host": "127.0.0.1", "port": l.Addr().(*net.TCPAddr).Port, "credit": 0}},
	}
	called := map[string]bool{"initialize": true, "session/takeOver": true, "recording/read": true}
	for _, call := range calls {
		called[call.method] = true
		before := auditEvents(t, path)
		if r := owner.call(call.method, call.params); r.Error != nil {
			t.Errorf("%s: %v", call.method, r.Error)
			continue
		}
		expectAudit(t, path, before, call.method, call.event)
	}
	var list protocol.RecordingsResult
	testkit.WaitFor(t, testkit.Patience, func() error {
		owner.result("recording/list", params{}, &list)
		if len(list.Recordings) == 0 {
			return errors.New("nothing is recorded")
		}
		return nil
	})
	before := auditEvents(t, path)
	read := func(offset int) {
		owner.result("recording/read", params{"recordingId": list.Recordings[0].RecordingID, "offset": offset, "len": 1}, new(protocol.ReadRecordingResult))
	}
	read(1) // wherever it begins
	expectAudit(t, path, before, "recording/read", "recording read")
	before = auditEvents(t, path)
	read(2)
	expectAudit(t, path, before, "recording/read", "")
	read(0)
	expectAudit(t, path, before, "recording/read", "recording read")
	before = auditEvents(t, path)
	observer := connect(t, as("ann"))
	if err := observer.initialize(params{"clientName": "test", "observeSessionId": owner.SessionID}); err != nil {
		t.Fatal(err)
	}
	expectAudit(t, path, before, "initialize", "session observed")
	before = auditEvents(t, path)
	observer.result("session/takeOver", nil, new(struct{}))
	expectAudit(t, path, before, "session/takeOver", "session taken over")
	for _, method := range server.Methods() {
		if !called[method] {
			t.Errorf("nobody has decided whether %s is in the audit log", method)
		}
	}
}

// byTheWay are events that no request of these leaves, or not alone.
var byTheWay = []string{"exit", "connection opened", "connection closed"}

// expectAudit expects one event since before, or none for "".
func expectAudit(t *testing.T, path string, before int, method, event string) {
	t.Helper()
	var want []string
	if event != "" {
		want = []string{event}
	}
	testkit.WaitFor(t, testkit.Patience, func() error { // a line may come after the answer
		events := auditNames(t, path, before)
		if len(events) < len(want) {
			return &missingEvent{method, event}
		}
		if !slices.Equal(events, want) {
			t.Fatalf("%s leaves %q in the audit log, want %q", method, events, want)
		}
		return nil
	})
}

type missingEvent struct{ method, event string }

func (e *missingEvent) Error() string {
	return e.method + " leaves no " + e.event + " in the audit log"
}

func auditEvents(t *testing.T, path string) int { return len(auditNames(t, path, 0)) }

// auditNames returns the names of the events after the first ones, each of which must have
// the principal.
func auditNames(t *testing.T, path string, after int) (names []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e struct{ Event, Principal string }
		if !strings.HasSuffix(line, "\n") {
			break // it is being written
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(byTheWay, e.Event) || e.Event == "opened" {
			continue
		}
		if e.Principal != "ann" {
			t.Fatalf("an event without the principal: %s", line)
		}
		names = append(names, e.Event)
	}
	return names[min(after, len(names)):]
}
