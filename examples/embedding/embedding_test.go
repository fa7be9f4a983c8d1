// Package embedding_test runs the programs of this module.
package embedding_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"execserver/protocol"
	"execserver/transport"
)

const token = "correct horse battery staple"

// programs is the directory of the built programs.
var programs string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "embedding")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = dir
	if out, err := exec.Command("go", "build", "-o", dir, "./command", "./server").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// serve starts the program server and returns its URL.
func serve(t *testing.T) (url string) {
	t.Helper()
	server := exec.Command(filepath.Join(programs, "server"))
	server.Env = append(os.Environ(), "TOKEN="+token)
	server.Stderr = os.Stderr
	stdout, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		if err := server.Wait(); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// TestCommandAndServer has the program command run something by the program server: with
// its token, and without.
func TestCommandAndServer(t *testing.T) {
	url, program := serve(t), filepath.Join(programs, "command")
	for _, test := range []struct{ token, want string }{
		{token, "hello from sh\n"},
		{"wrong", "401 Unauthorized"},
	} {
		command := exec.Command(program, url, "sh", "-c", "read word; echo $word from sh")
		command.Env = append(os.Environ(), "TOKEN="+test.token)
		command.Stdin = strings.NewReader("hello\n")
		out, err := command.CombinedOutput()
		if !strings.Contains(string(out), test.want) || (err == nil) != (test.token == token) {
			t.Errorf("token %q: %v, %s", test.token, err, out)
		}
	}
}

// TestSandbox has the program server run a command in a sandbox. The command can write
// only where the sandbox permits.
func TestSandbox(t *testing.T) {
	inside, outside := t.TempDir(), t.TempDir()
	conn, err := transport.Dial(t.Context(), serve(t), &transport.DialOptions{Header: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(transport.Reason{Code: transport.CodeNormal})
	// call sends a request and returns its answer, or the error of the server.
	var id int64
	call := func(method string, params, result any) error {
		id++
		text, err := protocol.AppendRequest(nil, protocol.NumberID(id), method, params)
		if err == nil {
			err = conn.Write(text)
		}
		for err == nil {
			if text, err = conn.Read(nil); err != nil {
				break
			}
			message, err := protocol.ParseMessage(text)
			switch {
			case err != nil:
				t.Fatalf("%v: %s", err, text)
			case message.Kind == protocol.Notification || message.Kind == protocol.Request: // such as output
			case message.Error != nil:
				return message.Error
			case result == nil:
				return nil
			default:
				return json.Unmarshal(message.Result, result)
			}
		}
		t.Fatalf("%s: %v", method, err)
		return nil
	}
	if err := call(protocol.MethodInitialize, protocol.InitializeParams{ClientName: "test"}, nil); err != nil {
		t.Fatal(err)
	}
	initialized, err := protocol.AppendNotification(nil, protocol.MethodInitialized, struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Write(initialized); err != nil {
		t.Fatal(err)
	}
	sandbox := fmt.Sprintf(`{
		"permissions": {"type": "managed", "network": "restricted", "file_system": {"type": "restricted", "entries": [
			{"access": "read", "path": {"type": "special", "value": {"kind": "root"}}},
			{"access": "write", "path": {"type": "path", "path": %q}}
		]}},
		"cwd": "file:///", "workspaceRoots": [], "windowsSandboxLevel": "disabled"
	}`, "file://"+inside)
	err = call(protocol.MethodStart, protocol.StartParams{
		ProcessID: "1", Cwd: protocol.URIPath("/"), Sandbox: json.RawMessage(sandbox), Env: map[string]string{},
		Argv: []string{"/bin/sh", "-c", "echo >" + inside + "/file; echo >" + outside + "/file; exit 3"},
	}, nil)
	const helpless = "this program" // has no sandbox, or does not call RunHelper
	if err != nil && strings.Contains(err.Error(), "cannot be enforced on this executor") && !strings.Contains(err.Error(), helpless) {
		t.Skipf("this machine has no means for a sandbox: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var ended protocol.WaitResult
	if err := call(protocol.MethodWait, protocol.WaitParams{ProcessID: "1"}, &ended); err != nil {
		t.Fatal(err)
	}
	if ended.Exit == nil || ended.Exit.ExitCode != 3 {
		t.Errorf("the command ended with %+v", ended.Exit)
	}
	if _, err := os.Stat(filepath.Join(inside, "file")); err != nil {
		t.Errorf("the sandbox permits a write here: %v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the sandbox permits no write here, but the file exists: %v", err)
	}
}
