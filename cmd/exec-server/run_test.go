//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
)

// runFlags are where run runs its commands in a test: here, and on a server.
func runFlags(t *testing.T) map[string][]string {
	p, err := startServer("", nil, "--listen", "ws://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return map[string][]string{"local": nil, "server": {"--url", p.url}}
}

// terminal runs "exec-server run -t" on a terminal, and is who sits there.
type terminal struct {
	t       *testing.T
	command *client.Cmd
	out     io.Reader
	seen    string
}

func newTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	env, err := client.Local(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	c := env.Command(ctx, "exec-server", append([]string{"run", "-t"}, args...)...)
	c.TTY = &client.Size{Rows: 30, Cols: 100}
	c.EnvPolicy = client.InheritAll()
	c.Env = []string{"TERM=vt52"}
	term := &terminal{t: t, command: c}
	if term.out, err = c.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return term
}

func (m *terminal) write(text string) {
	m.t.Helper()
	if err := m.command.Write(context.Background(), []byte(text)); err != nil {
		m.t.Fatal(err)
	}
}

// expect waits for a text on the screen, after what was expected before, and
// returns what is between.
func (m *terminal) expect(text string) (before string) {
	m.t.Helper()
	buf := make([]byte, 1000)
	for {
		if before, after, ok := strings.Cut(m.seen, text); ok {
			m.seen = after
			return before
		}
		n, err := m.out.Read(buf)
		if err != nil {
			m.t.Fatalf("%q does not come after %q: %v", text, m.seen, err)
		}
		m.seen += string(buf[:n])
	}
}

// A terminal at the other end is like one here: its size, its keys, its type.
func TestRunOnTerminal(t *testing.T) {
	for name, flags := range runFlags(t) {
		t.Run(name, func(t *testing.T) {
			m := newTerminal(t, append(flags, "--", "sh")...)
			m.write("echo size $(stty size) term $TERM; PS1=ready:\n")
			m.expect("size 30 100 term vt52\r\n")
			m.expect("ready:")
			if err := m.command.Resize(context.Background(), client.Size{Rows: 41, Cols: 99}); err != nil {
				t.Fatal(err)
			}
			testkit.WaitFor(t, patience, func() error {
				m.write("echo size $(stty size) .\n")
				m.expect("\nsize ")
				if size := m.expect(" .\r\n"); size != "41 99" {
					return fmt.Errorf("the size is %q", size)
				}
				return nil
			})
			// A key that means a signal means it at the other end.
			m.write("sh -c 'echo be''gun; exec sleep 3600'\n")
			m.expect("begun\r\n")
			m.write("\x03")
			m.expect("ready:")
			m.write("exit 5\n")
			err := m.command.Wait()
			if exit, ok := errors.AsType[*client.ExitError](err); !ok || exit.ExitCode != 5 {
				t.Errorf("Wait: %v", err)
			}
		})
	}
}

// Signals go to the command, whose end is ours.
func TestRunPassesSignals(t *testing.T) {
	for name, flags := range runFlags(t) {
		t.Run(name, func(t *testing.T) {
			script := `trap 'echo got; exit 6' TERM USR1; echo ready; while :; do sleep 0.01; done`
			for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1} {
				command := exec.Command("exec-server", append(append([]string{"run"}, flags...), "--", "sh", "-c", script)...)
				stdout, err := command.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := command.Start(); err != nil {
					t.Fatal(err)
				}
				line := make([]byte, len("ready\n"))
				if _, err := io.ReadFull(stdout, line); err != nil {
					t.Fatal(err)
				}
				_ = command.Process.Signal(sig)
				rest, _ := io.ReadAll(stdout)
				_ = command.Wait()
				if code := command.ProcessState.ExitCode(); code != 6 || string(rest) != "got\n" {
					t.Errorf("%v: exit code %d, %q", sig, code, rest)
				}
			}
		})
	}
}

// run ends by a signal although its server does not answer: before the start, and
// after it.
func TestRunEndsBySignal(t *testing.T) {
	for _, test := range []struct {
		name    string
		stop    bool // the server is stopped once the command runs
		signals []syscall.Signal
	}{
		{"connecting", false, []syscall.Signal{syscall.SIGTERM}},
		{"stopped", true, []syscall.Signal{syscall.SIGINT}},
		{"stopped, twice", true, []syscall.Signal{syscall.SIGTERM, syscall.SIGINT}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			url := ""
			var server *program
			var listener net.Listener
			if test.stop {
				var err error
				if server, err = startServer("", nil, "--keeper=off", "--listen", "ws://127.0.0.1:0"); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(server.kill)
				url = server.url
			} else {
				var err error
				if listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
					t.Fatal(err)
				}
				defer listener.Close()
				url = "ws://" + listener.Addr().String()
			}
			command := exec.Command("exec-server", "run", "--url", url, "--", "sh", "-c", "echo ready; exec sleep 3600")
			stdout, err := command.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			if test.stop {
				if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
					t.Fatal(err)
				}
				_ = server.command.Process.Signal(syscall.SIGSTOP)
				defer server.command.Process.Signal(syscall.SIGCONT)
			} else {
				conn, err := listener.Accept() // and say nothing
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
			}
			for _, s := range test.signals {
				_ = command.Process.Signal(s)
				<-time.After(1200 * time.Millisecond) // the second is of somebody who has lost patience
			}
			done := make(chan error, 1)
			go func() { done <- command.Wait() }()
			select {
			case <-done:
			case <-time.After(patience):
				_ = command.Process.Kill()
				t.Fatal("run goes on")
			}
			want := 128 + int(test.signals[len(test.signals)-1])
			if code := command.ProcessState.ExitCode(); code != want {
				t.Errorf("exit code %d, not %d", code, want)
			}
		})
	}
}

// Input that ends in the middle of a line ends on a terminal, too.
func TestRunOnTerminalEndsInput(t *testing.T) {
	for name, flags := range runFlags(t) {
		for _, input := range []string{"", "abc", "abc\n"} {
			command := exec.Command("exec-server", append(append([]string{"run", "-t"}, flags...), "--", "cat")...)
			command.Stdin = io.MultiReader(strings.NewReader(input)) // a pipe
			done := make(chan struct{})
			var out []byte
			var err error
			go func() {
				defer close(done)
				out, err = command.Output()
			}()
			select {
			case <-done:
			case <-time.After(patience):
				t.Fatalf("%s: run goes on after %q", name, input)
			}
			if err != nil || !strings.Contains(string(out), strings.TrimSpace(input)) {
				t.Errorf("%s: %q: %q, %v", name, input, out, err)
			}
		}
	}
}

// When nobody reads the output any more, the command ends.
func TestRunIntoBrokenPipe(t *testing.T) {
	for name, flags := range runFlags(t) {
		t.Run(name, func(t *testing.T) {
			command := exec.Command("exec-server", append(append([]string{"run"}, flags...), "--", "yes")...)
			var stderr bytes.Buffer
			command.Stderr = &stderr
			stdout, err := command.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(stdout, make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			_ = stdout.Close()
			done := make(chan error, 1)
			go func() { done <- command.Wait() }()
			select {
			case <-done:
			case <-time.After(patience):
				t.Fatal("run goes on")
			}
			if code := command.ProcessState.ExitCode(); code != 141 || stderr.Len() > 0 {
				t.Errorf("exit code %d, %q", code, &stderr)
			}
		})
	}
}

// What may be wrong with a URL, or with what is there, is said in one line.
func TestRunAdvises(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<!DOCTYPE html>\n<p>a page</p>")
	}))
	defer page.Close()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	address := page.Listener.Addr().String()
	for _, test := range []struct{ url, want string }{
		{"ws://" + address, "the server refused the upgrade with status 200 OK; is this the URL of an exec-server?"},
		{"wss://" + address, "use ws:// for a server without TLS"},
		{"wss://" + secure.Listener.Addr().String(), "unknown authority; name the certificate of its authority by SSL_CERT_FILE"},
	} {
		out, err := exec.Command("exec-server", "run", "--url", test.url, "--", "true").CombinedOutput()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != exitFailed || !strings.HasSuffix(string(out), test.want+"\n") || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%s: %v, %s", test.url, err, out)
		}
	}
}
