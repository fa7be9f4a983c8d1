//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/scripts"
	"execserver/internal/testkit/transcript"
)

// listeners returns the arguments for every way to listen.
func listeners(t *testing.T) map[string][]string {
	t.Helper()
	cert, key, err := scripts.MakeCertificate()
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

// socketPath returns a path for a socket, which must be short.
func socketPath(t *testing.T) string {
	t.Helper()
	return filepath.Join(testkit.SocketDir(t), "socket")
}

// TestSignals checks that a signal ends the server and all its processes at once,
// whatever the server listens on and whoever is connected.
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
				c.handshake("")
				pids := c.family()
				if err := p.signal(s.signal); err != nil {
					t.Fatal(err)
				}
				p.exits(t, s.code)
				testkit.Gone(t, pids...)
				if text := p.stderr.all(); text != bannerOf(p) {
					t.Errorf("stderr: %q", text)
				}
			})
		}
	}
}

// bannerOf returns what a server without problems writes to stderr.
func bannerOf(p *program) string {
	if p.url == "" {
		return ""
	}
	return "exec-server listening on " + p.url + "\n"
}

// TestSignalWithoutClients sends the signal while a session waits for its client.
func TestSignalWithoutClients(t *testing.T) {
	p := newServer(t)
	c := connect(t, p)
	c.handshake("")
	pids := c.family()
	c.Drop()
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 0)
	testkit.Gone(t, pids...)
}

// TestNobodyReads closes the output of a server on stdio, and leaves its input open, as a client
// does that has ended while another process still holds its pipe.
func TestNobodyReads(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux shows it to a program that has nothing to write")
	}
	t.Parallel()
	p := newServer(t, "--listen", "stdio")
	c := connect(t, p)
	c.handshake("")
	pids := c.family()
	if err := p.stdout.file.Close(); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 0)
	testkit.Gone(t, pids...)
}

// TestHangup checks that SIGHUP ends neither the server nor a connection, whatever the
// server listens on.
func TestHangup(t *testing.T) {
	for name, args := range listeners(t) {
		t.Run(name, func(t *testing.T) {
			p := newServer(t, append(args, "--log-level=info")...)
			c := connect(t, p)
			c.handshake("")
			if err := p.signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			if err := p.stderr.await(testkit.Patience, func(text string) bool { return strings.Contains(text, "signal=hangup") }); err != nil {
				t.Fatalf("the signal is not logged: %v: %s", err, p.stderr.text())
			}
			pids := c.family()
			if err := p.signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			p.exits(t, 0)
			testkit.Gone(t, pids...)
		})
	}
}

// TestNohup checks that a server under nohup outlives its terminal.
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
	connect(t, p).handshake("")
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 0)
	if text := p.stderr.all(); !strings.Contains(text, "signal=terminated") {
		t.Errorf("it has not ended by SIGTERM: %s", text)
	}
}

// TestBrokenPipe checks that the server outlives the program that reads its log.
func TestBrokenPipe(t *testing.T) {
	p := newServer(t, "--log-level", "debug")
	if err := errors.Join(p.stdout.file.Close(), p.stderr.file.Close()); err != nil {
		t.Fatal(err)
	}
	if err := p.signal(syscall.SIGPIPE); err != nil {
		t.Fatal(err)
	}
	connect(t, p).handshake("")
	connect(t, p).handshake("")
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 0)
}

// TestBannerUnwanted checks that a server serves, and logs a warning, when nobody reads
// its standard output.
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
	if err := p.stderr.await(testkit.Patience, listening); err != nil {
		t.Fatalf("%v: %s", err, p.stderr.text())
	}
	if text := p.stderr.text(); !strings.Contains(text, `level=WARN msg="cannot write the server's URL to standard output" url=`+url) {
		t.Errorf("stderr: %s", text)
	}
	connect(t, p).handshake("")
}

// TestStdioEnds checks that on stdio the server and all its processes end with the
// connection, however that ends. Its input stays open unless the end of the input is the
// reason.
func TestStdioEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(p *program, c *wireClient) error{
		"stdin ends": func(p *program, _ *wireClient) error { return p.stdin.Close() },
		"a violation": func(_ *program, c *wireClient) error {
			return c.Notify("no/such", nil)
		},
		"stdout ends": func(p *program, c *wireClient) error {
			if err := p.stdout.file.Close(); err != nil {
				return err
			}
			request := []byte(`{"id":"x","method":"environment/status"}`)
			err := c.Link.Send(transcript.Whole, request)
			if errors.Is(err, syscall.EPIPE) { // the server has noticed without it, and has ended
				return nil
			}
			return err
		},
		"nobody reads stdout": func(p *program, c *wireClient) error {
			c.start(shellSpec("flood", "yes"))
			c.outputOf("flood")
			c.Pause()
			c.t.Cleanup(c.Unpause)
			return p.stdin.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newServer(t, "--listen", "stdio")
			c := connect(t, p)
			c.handshake("")
			pids := c.family()
			if err := end(p, c); err != nil {
				t.Fatal(err)
			}
			p.exits(t, 0)
			testkit.Gone(t, pids...)
		})
	}
}

// TestInputEnds checks that a server that listens does not end with its standard input.
func TestInputEnds(t *testing.T) {
	p := newServer(t)
	if err := p.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	c := connect(t, p)
	c.handshake("")
	c.call("environment/status", nil, nil)
}

// TestCloseCodes checks the close frames of a WebSocket.
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
		// The connection answers no ping, so another one may take over its session.
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

// TestKilled checks that when the server itself is killed, nothing is left that the
// kernel can prevent.
func TestKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a child when its parent dies")
	}
	p := newServer(t)
	c := connect(t, p)
	c.handshake("")
	pids := c.script("echo $$; exec sleep 1000")
	if err := p.signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Gone(t, pids...)
	if code, err := p.wait(promptly); err != nil || code != -int(syscall.SIGKILL) {
		t.Errorf("ended with %d, %v", code, err)
	}
}
