//go:build unix

package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/transcript"
)

// wireClient is a peer that takes messages one by one.
type wireClient struct {
	t    *testing.T
	conn transcript.Conn
	next int // id of the last request

	skipped []object // messages that nobody has taken
}

// connect opens a connection that ends with the test.
func connect(t *testing.T, p *program) *wireClient {
	t.Helper()
	conn, err := p.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Drop)
	return &wireClient{t: t, conn: conn}
}

// send sends a message.
func (c *wireClient) send(message any) {
	c.t.Helper()
	text, err := json.Marshal(message)
	if err == nil {
		err = c.conn.Send(transcript.Whole, text)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

type object = map[string]any

// receive takes the first message with a member that has not been taken yet.
func (c *wireClient) receive(member string, value any) object {
	c.t.Helper()
	for i, message := range c.skipped {
		if message[member] == value {
			c.skipped = slices.Delete(c.skipped, i, i+1)
			return message
		}
	}
	timeout := time.AfterFunc(patience, c.conn.Drop)
	defer timeout.Stop()
	for {
		text, err := c.conn.Receive()
		if err != nil {
			c.t.Fatalf("no message with %s %v: %v; got %v", member, value, err, c.skipped)
		}
		var message object
		if err := json.Unmarshal(text, &message); err != nil {
			c.t.Fatal(err)
		}
		if message[member] == value {
			return message
		}
		c.skipped = append(c.skipped, message)
	}
}

// call sends a request and returns its result.
func (c *wireClient) call(method string, params any) object {
	c.t.Helper()
	c.next++
	c.send(object{"id": c.next, "method": method, "params": params})
	message := c.receive("id", float64(c.next))
	result, ok := message["result"].(object)
	if !ok {
		c.t.Fatalf("%s: %v", method, message)
	}
	return result
}

// handshake returns the id of the session; resume is null or one to resume.
func (c *wireClient) handshake(resume any) string {
	c.t.Helper()
	id := c.call("initialize", object{"clientName": "test", "resumeSessionId": resume})["sessionId"].(string)
	c.send(object{"method": "initialized"})
	return id
}

// family starts a process that ignores what it can, and has a child of its own.
// It returns the process ids of both.
func (c *wireClient) family() []int {
	c.t.Helper()
	return c.script("trap '' TERM INT HUP; sleep 1000 & echo $$ $!; wait")
}

// script starts a shell that prints one line of process ids, and returns them.
func (c *wireClient) script(text string) (pids []int) {
	c.t.Helper()
	c.call("process/start", object{
		"processId": "p", "cwd": "/", "env": object{"PATH": os.Getenv("PATH")}, "tty": false,
		"argv": []string{"/bin/sh", "-c", text},
	})
	params := c.receive("method", "process/output")["params"].(object)
	output, err := base64.StdEncoding.DecodeString(params["chunk"].(string))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, field := range strings.Fields(string(output)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			c.t.Fatalf("%q: %v", output, err)
		}
		pids = append(pids, pid)
	}
	c.t.Cleanup(func() {
		for _, pid := range pids {
			if testkit.Alive(pid) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	return pids
}

// gone expects processes to have ended.
func gone(t *testing.T, pids []int) {
	t.Helper()
	testkit.WaitFor(t, patience, func() error {
		for _, pid := range pids {
			if testkit.Alive(pid) {
				return fmt.Errorf("process %d has been left running", pid)
			}
		}
		return nil
	})
}

// listeners are the arguments for every way to listen.
func listeners(t *testing.T) map[string][]string {
	t.Helper()
	cert, key, err := certificate()
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]string{
		"ws":    {"--listen", "ws://127.0.0.1:0"},
		"wss":   {"--listen", "wss://127.0.0.1:0", "--tls-cert", writeFile(t, string(cert)), "--tls-key", writeFile(t, string(key))},
		"unix":  {"--listen", "unix://" + socketPath(t)},
		"stdio": {"--listen", "stdio"},
	}
}

// socketPath is a path for a socket, which has to be short.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "es")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "socket")
}

// TestSignals shows that a signal ends the server at once, whatever it listens
// on and whoever is connected, and that it takes all processes along.
func TestSignals(t *testing.T) {
	for name, args := range listeners(t) {
		for _, s := range []struct {
			signal syscall.Signal
			code   int
		}{
			{syscall.SIGTERM, 0},
			{syscall.SIGINT, 0},
		} {
			t.Run(name+"/"+s.signal.String(), func(t *testing.T) {
				p := newServer(t, args...)
				c := connect(t, p)
				c.handshake(nil)
				pids := c.family()
				if err := p.signal(s.signal); err != nil {
					t.Fatal(err)
				}
				p.exits(t, s.code)
				gone(t, pids)
				if text := p.stderr.all(); text != bannerOf(p) {
					t.Errorf("stderr: %q", text)
				}
			})
		}
	}
}

// bannerOf is what a server writes to stderr when all is well.
func bannerOf(p *program) string {
	if p.url == "" {
		return ""
	}
	return "exec-server listening on " + p.url + "\n"
}

// TestSignalWithoutClients is about a session that waits for its client.
func TestSignalWithoutClients(t *testing.T) {
	p := newServer(t)
	c := connect(t, p)
	c.handshake(nil)
	pids := c.family()
	c.conn.Drop()
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 0)
	gone(t, pids)
}

// TestHangup shows that SIGHUP ends neither the server nor a connection, whatever it
// listens on.
func TestHangup(t *testing.T) {
	for name, args := range listeners(t) {
		t.Run(name, func(t *testing.T) {
			p := newServer(t, append(args, "--log-level=info")...)
			c := connect(t, p)
			c.handshake(nil)
			if err := p.signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			if err := p.stderr.await(patience, func(text string) bool { return strings.Contains(text, "signal=hangup") }); err != nil {
				t.Fatalf("the signal is not logged: %v: %s", err, p.stderr.text())
			}
			pids := c.family()
			if err := p.signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			p.exits(t, 0)
			gone(t, pids)
		})
	}
}

// TestNohup shows that a server which was started to outlive its terminal does.
func TestNohup(t *testing.T) {
	command := exec.Command("/bin/sh", "-c", "trap '' HUP; exec exec-server --log-level info")
	p, err := launch(command, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	if err := p.signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	connect(t, p).handshake(nil)
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 0)
	if text := p.stderr.all(); !strings.Contains(text, "signal=terminated") {
		t.Errorf("it has not ended by SIGTERM: %s", text)
	}
}

// TestBrokenPipe shows that the server outlives whoever read its log.
func TestBrokenPipe(t *testing.T) {
	p := newServer(t, "--log-level", "debug")
	if err := errors.Join(p.stdout.file.Close(), p.stderr.file.Close()); err != nil {
		t.Fatal(err)
	}
	if err := p.signal(syscall.SIGPIPE); err != nil {
		t.Fatal(err)
	}
	connect(t, p).handshake(nil)
	connect(t, p).handshake(nil)
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 0)
}

// TestBannerUnwanted shows that a server serves whose standard output nobody
// takes, and says so.
func TestBannerUnwanted(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no file here refuses every write: ", err)
	}
	url := "unix://" + socketPath(t)
	p, err := launch(exec.Command("/bin/sh", "-c", `exec exec-server --listen "$0" >/dev/full`, url), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	p.url = url
	listening := func(text string) bool { return strings.HasSuffix(text, "exec-server listening on "+url+"\n") }
	if err := p.stderr.await(patience, listening); err != nil {
		t.Fatalf("%v: %s", err, p.stderr.text())
	}
	if text := p.stderr.text(); !strings.Contains(text, `level=WARN msg="cannot say on standard output where the server listens" url=`+url) {
		t.Errorf("stderr: %s", text)
	}
	connect(t, p).handshake(nil)
}

// TestStdioEnds shows that on stdio the server ends with its connection, however
// that ends, and takes all processes along. Its input stays open but for where
// that is the reason.
func TestStdioEnds(t *testing.T) {
	for name, end := range map[string]func(p *program, c *wireClient) error{
		"stdin ends": func(p *program, _ *wireClient) error { return p.stdin.Close() },
		"a violation": func(_ *program, c *wireClient) error {
			return c.conn.Send(transcript.Whole, []byte(`{"method":"no/such"}`))
		},
		"stdout ends": func(p *program, c *wireClient) error {
			request := []byte(`{"id":"x","method":"environment/status"}`)
			return errors.Join(p.stdout.file.Close(), c.conn.Send(transcript.Whole, request))
		},
		"nobody reads stdout": func(p *program, c *wireClient) error {
			c.send(object{"id": "flood", "method": "process/start", "params": object{
				"processId": "flood", "cwd": "/", "env": object{"PATH": os.Getenv("PATH")}, "tty": false,
				"argv": []string{"/bin/sh", "-c", "yes"},
			}})
			c.receive("method", "process/output")
			return p.stdin.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newServer(t, "--listen", "stdio")
			c := connect(t, p)
			c.handshake(nil)
			pids := c.family()
			if err := end(p, c); err != nil {
				t.Fatal(err)
			}
			p.exits(t, 0)
			gone(t, pids)
		})
	}
}

// TestExitOnStdinClose covers the flag, and that a listening server does not
// look at its input otherwise.
func TestExitOnStdinClose(t *testing.T) {
	for name, args := range listeners(t) {
		t.Run(name, func(t *testing.T) {
			p := newServer(t, append(args, "--exit-on-stdin-close")...)
			c := connect(t, p)
			c.handshake(nil)
			pids := c.family()
			if err := p.stdin.Close(); err != nil {
				t.Fatal(err)
			}
			p.exits(t, 0)
			gone(t, pids)
		})
	}
	t.Run("without", func(t *testing.T) {
		p := newServer(t)
		if err := p.stdin.Close(); err != nil {
			t.Fatal(err)
		}
		c := connect(t, p)
		c.handshake(nil)
		c.call("environment/status", nil)
	})
}

// TestCloseCodes looks at the frames that end a WebSocket.
func TestCloseCodes(t *testing.T) {
	t.Run("shutdown", func(t *testing.T) {
		p := newServer(t)
		conn := openFrames(t, p)
		conn.write(`{"id":1,"method":"initialize","params":{"clientName":"raw"}}`)
		conn.until(opText)
		if err := p.signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		conn.closes(1001, "server is shutting down")
		p.exits(t, 0)
	})
	t.Run("taken over", func(t *testing.T) {
		p := newServer(t)
		conn := openFrames(t, p)
		conn.write(`{"id":1,"method":"initialize","params":{"clientName":"raw"}}`)
		var reply struct{ Result struct{ SessionID string } }
		if err := json.Unmarshal(conn.until(opText), &reply); err != nil {
			t.Fatal(err)
		}
		// It answers no ping, so another one may have its session.
		if id := connect(t, p).handshake(reply.Result.SessionID); id != reply.Result.SessionID {
			t.Errorf("resumed session %s, want %s", id, reply.Result.SessionID)
		}
		conn.closes(1008, "session has been resumed by another connection")
	})
	t.Run("violation", func(t *testing.T) {
		conn := openFrames(t, newServer(t))
		conn.write(`{"method":"no/such"}`)
		if got, want := string(conn.until(opText)), "{\"error\":{\"code\":-32600,\"message\":\"unknown notification `no/such`\"},\"id\":-1}"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		conn.closes(1002, "unknown notification `no/such`")
	})
	t.Run("the peer's own", func(t *testing.T) {
		conn := openFrames(t, newServer(t))
		conn.frame(opClose, "\x0f\xa0bye") // 4000
		conn.closes(4000, "")
	})
}

// TestKilled shows what is left when the server itself is killed: nothing that
// the kernel can prevent.
func TestKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a child when its parent dies")
	}
	p := newServer(t)
	c := connect(t, p)
	c.handshake(nil)
	pids := c.script("echo $$; exec sleep 1000")
	if err := p.signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, pids)
	if code, err := p.wait(promptly); err != nil || code != -int(syscall.SIGKILL) {
		t.Errorf("ended with %d, %v", code, err)
	}
}
