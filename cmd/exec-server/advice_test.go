//go:build unix

package main

import (
	"os/exec"
	"strings"
	"testing"
)

// oldServer listens where its url says, and knows of the protocol the handshake alone.
func oldServer(t *testing.T) (url string) {
	return fakeServer(t, func(m fakeRequest) (messages []object, last bool) {
		switch m.Method {
		case "initialize":
			return []object{{"id": m.ID, "result": object{"sessionId": "s"}}}, false
		case "environment/info":
			return []object{{"id": m.ID, "result": object{"capabilities": object{"fsThis": true, "fsThat": false}}}}, false
		}
		return []object{{"id": m.ID, "error": object{"code": -32601, "message": "unknown method"}}}, false
	})
}

// TestAdviceAtOldServers checks what people read who ask a server for what it cannot do.
func TestAdviceAtOldServers(t *testing.T) {
	url := oldServer(t)
	if out, err := exec.Command("exec-server", "info", "--url", url).Output(); err != nil || string(out) != "can  fsThis\n" {
		t.Errorf("info: %v: %s", err, out)
	}
	for _, test := range []struct{ lines, want string }{
		{"ps, ps -a --json, sessions, sessions --end x, logs x, kill x, attach x", url + " does not tell what runs there, as the servers of Codex do not: " +
			"it lacks sessionList; list the processes of the machine instead, with exec-server run and ps -ef, or start this server there: exec-server serve"},
		{"forward 0:80", "it lacks tcpOpen; start this server there: exec-server serve"},
		{"run -d -- true", "this server keeps no session without a connection; start this server there: exec-server serve"},
		{"run --sandbox read-only -- true", "it lacks sandbox"},
		{"run --timeout 1s -- true", "it lacks processLimits"},
	} {
		for line := range strings.SplitSeq(test.lines, ", ") {
			words := strings.Split(line, " ")
			args := append([]string{words[0], "--url", url}, words[1:]...)
			out, err := exec.Command("exec-server", args...).CombinedOutput()
			if err == nil || !strings.HasPrefix(string(out), "Error: ") || !strings.HasSuffix(string(out), test.want+"\n") || strings.Count(string(out), "\n") != 1 {
				t.Errorf("%s: %v: %s", line, err, out)
			}
		}
	}
}
