//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// TestAuditLog does what is to be written down, with the log renamed meanwhile, and
// checks the chain with the program itself.
func TestAuditLog(t *testing.T) {
	dir := t.TempDir()
	file, log := filepath.Join(dir, "tokens"), filepath.Join(dir, "audit")
	replaceFile(t, file, fmt.Sprintf("[[token]]\nname = \"ann\"\nscope = [\"full\"]\nsha256 = %q\n[[token]]\nname = \"eve\"\nscope = [\"observe\"]\nsha256 = %q\n",
		digestOf("the token of ann"), digestOf("the token of eve")))
	p := newServer(t, "--tokens", file, "--audit-log", log, "--audit-required", "--log-level=info")
	c := as(t, p, "the token of ann", nil)
	session := c.handshake(nil)
	c.script("echo $$ 1; exit 3")
	logged(t, p, `msg="process exited"`)
	c.call("fs/writeFile", object{"path": dir + "/f", "dataBase64": "eA=="})
	address := strings.TrimPrefix(p.url, "ws://")
	for _, spelled := range []string{"http://", `http:\\`, "HTTP:", "ht\ttp:///", "\n http://user:the token of the user@"} {
		c.call("http/request", object{"method": "GET", "url": spelled + address + "/healthz", "requestId": "1"})
	}
	if err := os.Rename(log, log+".1"); err != nil {
		t.Fatal(err)
	}
	if err := p.signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, patience, func() error { _, err := os.Stat(log); return err })
	exchange{request: bearer("the token of mallory"), status: 401, body: "invalid websocket bearer token"}.check(t, p)
	c.conn.Drop()
	observer := as(t, p, "the token of eve", nil)
	id := observer.call("initialize", object{"clientName": "test", "observeSessionId": session})["sessionId"]
	if id != session {
		t.Errorf("observed %v", id)
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
	if text := p.stderr.text(); !strings.Contains(text, `argv="[\"/bin/sh\"`) && !strings.Contains(text, `argv="[\"sh\"`) || !strings.Contains(text, "code=3") {
		t.Errorf("argv and exit are not in the log: %s", text)
	}
	if text, err := exec.Command("exec-server", "audit", "verify", log+".1", log).CombinedOutput(); err != nil || !strings.Contains(string(text), "lines follow each other") {
		t.Errorf("verify: %v: %s", err, text)
	}
	first, err := os.ReadFile(log + ".1")
	if err != nil {
		t.Fatal(err)
	}
	replaceFile(t, log+".1", strings.Replace(string(first), `"exitCode":3`, `"exitCode":0`, 1))
	if text, err := exec.Command("exec-server", "audit", "verify", log+".1", log).CombinedOutput(); err == nil || !strings.Contains(string(text), "does not follow") {
		t.Errorf("verify of a changed log: %v: %s", err, text)
	}
}

// TestAuditRequired has no room for the log: nothing is done then that cannot be written
// down, unless that does not matter.
func TestAuditRequired(t *testing.T) {
	for _, required := range []bool{true, false} {
		t.Run(fmt.Sprintf("required=%t", required), func(t *testing.T) {
			dir := t.TempDir()
			// A limit of the size of files is as good as a full disk.
			command := exec.Command("/bin/sh", "-c", `trap "" XFSZ; ulimit -f 4; exec exec-server "$@"`, "sh", "--listen=ws://127.0.0.1:0",
				"--keeper=off", "--audit-log="+filepath.Join(dir, "audit"), fmt.Sprintf("--audit-required=%t", required))
			p, err := launch(command, true)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.kill)
			c := connect(t, p)
			c.handshake(nil)
			refused := false
			for i := 0; i < 50 && !refused; i++ {
				c.send(object{"id": "w", "method": "fs/createDirectory", "params": object{"path": fmt.Sprint(dir, "/", i), "recursive": false}})
				reply := c.receive("id", "w")
				if problem, ok := reply["error"].(map[string]any); ok {
					refused = true
					if text := problem["message"].(string); !strings.Contains(text, "cannot be written to the audit log (--audit-required)") {
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
			logged(t, p, "the audit log cannot be written")
		})
	}
}
