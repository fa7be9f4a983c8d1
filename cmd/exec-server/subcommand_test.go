//go:build unix

package main

import (
	"bytes"
	"net"
	"os/exec"
	"strings"
	"syscall"
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
		{"ps, ps -a --json, sessions, sessions --end x, logs x, kill x, attach x", url + " does not list its processes, like the servers of Codex: " +
			"it lacks sessionList; list the processes of the machine instead, with exec-server run and ps -ef, or start this server there: exec-server serve"},
		{"forward 0:80", "it lacks tcpOpen; start this server there: exec-server serve"},
		{"run -d -- true", "this server keeps no session without a connection; start this server there: exec-server serve"},
		{"run --sandbox read-only -- true", "it lacks sandbox; start this server there: exec-server serve"},
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

// TestSubcommandEndsBySignal checks that a signal ends a subcommand without a word,
// although its server does not answer.
func TestSubcommandEndsBySignal(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		command := exec.Command("exec-server", "ls", "--url", "ws://"+listener.Addr().String())
		var out bytes.Buffer
		command.Stdout, command.Stderr = &out, &out
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		conn, err := listener.Accept() // and stay silent
		if err != nil {
			t.Fatal(err)
		}
		_ = command.Process.Signal(sig)
		_ = command.Wait()
		_ = conn.Close()
		if code := command.ProcessState.ExitCode(); code != 128+int(sig) || out.Len() > 0 {
			t.Errorf("%v: exit code %d, %q", sig, code, &out)
		}
	}
}
