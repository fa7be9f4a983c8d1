//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
	"execserver/protocol"
)

// TestAuditLog causes every kind of event, with a rename of the log in between.
func TestAuditLog(t *testing.T) {
	dir := t.TempDir()
	file, log := filepath.Join(dir, "tokens"), filepath.Join(dir, "audit")
	replaceFile(t, file, fmt.Sprintf("[[token]]\nname = \"ann\"\nscope = [\"full\"]\nsha256 = %q\n[[token]]\nname = \"eve\"\nscope = [\"observe\"]\nsha256 = %q\n",
		digestOf("the token of ann"), digestOf("the token of eve")))
	p := newServer(t, "--tokens", file, "--audit-log", log, "--audit-required", "--log-level=info")
	c := as(t, p, "the token of ann", nil)
	session := c.handshake("")
	c.start(shellSpec("p", "exit 3"))
	logged(t, p, `msg="process exited"`)
	c.call("fs/writeFile", object{"path": dir + "/f", "dataBase64": "eA=="}, nil)
	address := strings.TrimPrefix(p.url, "ws://")
	for _, spelled := range []string{"http://", `http:\\`, "HTTP:", "ht\ttp:///", "\n http://user:the token of the user@"} {
		c.call("http/request", object{"method": "GET", "url": spelled + address + "/healthz", "requestId": "1"}, nil)
	}
	if err := os.Rename(log, log+".1"); err != nil {
		t.Fatal(err)
	}
	if err := p.signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error { _, err := os.Stat(log); return err })
	exchange{request: bearer("the token of mallory"), status: 401, body: "invalid websocket bearer token"}.check(t, p)
	c.Drop()
	observer := as(t, p, "the token of eve", nil)
	var observed protocol.InitializeResult
	if observer.call("initialize", object{"clientName": "test", "observeSessionId": session}, &observed); observed.SessionID != session {
		t.Errorf("observed %v", observed.SessionID)
	}
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 0)

	var events []string
	for _, path := range []string{log + ".1", log} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "the token of") {
			t.Errorf("a token is in the log: %s", text)
		}
		for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
			var e struct {
				Event, Principal, Session, Sandbox string
				Argv, Paths                        []string
				ExitCode                           *int
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			events = append(events, e.Event)
			switch e.Event {
			case "start":
				if e.Principal != "ann" || e.Session != session || e.Sandbox != "none" || !slices.Contains(e.Argv, "-c") {
					t.Errorf("start: %s", line)
				}
			case "exit":
				if e.ExitCode == nil || *e.ExitCode != 3 || e.Principal != "ann" {
					t.Errorf("exit: %s", line)
				}
			case "http request":
				if !slices.Equal(e.Paths, []string{"http://" + address}) {
					t.Errorf("http request: %s", line)
				}
			case "change":
				if !slices.Equal(e.Paths, []string{dir + "/f"}) {
					t.Errorf("change: %s", line)
				}
			}
		}
	}
	for _, want := range []string{
		"opened", "connection opened", "session created", "start", "exit", "change", "http request", "authentication refused", "session observed", "connection closed",
	} {
		if !slices.Contains(events, want) {
			t.Errorf("there is no %q: %q", want, events)
		}
	}
	if text := p.stderr.text(); !strings.Contains(text, `argv="[\"/bin/sh\"`) && !strings.Contains(text, `argv="[\"sh\"`) || !strings.Contains(text, "exitCode=3") {
		t.Errorf("argv and exit are not in the log: %s", text)
	}
	for i, want := range []string{"opened", "closed"} {
		if got := events[i*(len(events)-1)]; got != want {
			t.Errorf("the first and last events: %q, want %q", got, want)
		}
	}
}

// TestAuditToStandardError has the events where journald takes them from.
func TestAuditToStandardError(t *testing.T) {
	p := newServer(t, "--audit-log=-", "--audit-required")
	c := as(t, p, "", nil)
	c.handshake("")
	if err := p.signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	c.start(shellSpec("p", "exit 3"))
	for _, event := range []string{"opened", "session created", "start", "exit"} {
		logged(t, p, fmt.Sprintf(`"event":%q`, event))
	}
}

// TestAuditRequired checks that a server without room for its log refuses whatever it
// would have to record, unless the log is not required.
func TestAuditRequired(t *testing.T) {
	for _, required := range []bool{true, false} {
		t.Run(fmt.Sprintf("required=%t", required), func(t *testing.T) {
			dir := t.TempDir()
			// A limit on the size of files acts like a full disk.
			command := exec.Command("/bin/sh", "-c", `trap "" XFSZ; ulimit -f 4; exec exec-server "$@"`, "sh", "--listen=ws://127.0.0.1:0",
				"--without=supervisor", "--audit-log="+filepath.Join(dir, "audit"), fmt.Sprintf("--audit-required=%t", required))
			p, err := launch(command, true)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.kill)
			c := connect(t, p)
			c.handshake("")
			refused := false
			for i := 0; i < 50 && !refused; i++ {
				problem := c.try("fs/createDirectory", object{"path": fmt.Sprint(dir, "/", i), "recursive": false}, nil)
				if problem != nil {
					refused = true
					if text := problem.Message; !strings.Contains(text, "cannot be written to the audit log") {
						t.Errorf("refused because %q", text)
					}
					if _, err := os.Stat(fmt.Sprint(dir, "/", i)); err == nil {
						t.Error("it was done all the same")
					}
				}
			}
			if refused != required {
				t.Errorf("refused = %t", refused)
			}
			logged(t, p, "cannot write the audit log")
		})
	}
}

// TestAuditedRedirects checks that the log says where redirects lead.
func TestAuditedRedirects(t *testing.T) {
	var origins []string
	target := "/end"
	for range 3 { // the last server is asked first
		to := target
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/end" {
				http.Redirect(w, r, to, http.StatusSeeOther)
			}
		}))
		t.Cleanup(server.Close)
		target = server.URL + "/from?secret"
		origins = slices.Insert(origins, 0, server.URL)
	}
	log := filepath.Join(t.TempDir(), "audit")
	p := newServer(t, "--audit-log", log, "--audit-required") // so that an answer comes after the event is written
	c := as(t, p, "", nil)
	c.handshake("")
	c.call("http/request", object{"method": "POST", "url": target, "requestId": "1", "redirectPolicy": "follow"}, nil)
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var e struct {
			Event, Method string
			Paths         []string
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Event == "http request" {
			got = append(got, e.Method+" "+strings.Join(e.Paths, " "))
		}
	}
	// The last server redirects within its own origin.
	want := []string{"POST " + origins[0], "GET " + origins[1], "GET " + origins[2], "GET " + origins[2]}
	if !slices.Equal(got, want) || strings.Contains(string(text), "secret") {
		t.Errorf("got %q, want %q: %s", got, want, text)
	}
}
