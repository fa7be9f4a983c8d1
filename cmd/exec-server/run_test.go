//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/client"
	"execserver/client/local"
	"execserver/internal/cli"
	"execserver/internal/testkit"
)

// runFlags returns the flags that make run use this machine, and a server.
func runFlags(t *testing.T) map[string][]string {
	p, err := startServer("", nil, "--listen", "ws://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return map[string][]string{"local": {"--on", "local"}, "server": {"--url", p.url}}
}

// terminal runs "exec-server run -t" on a terminal, and plays its user.
type testTerminal struct {
	t       *testing.T
	command *client.Cmd
	out     io.Reader
	seen    string
}

func newTerminal(t *testing.T, args ...string) *testTerminal {
	t.Helper()
	env, err := local.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	c := env.Command(ctx, "exec-server", append([]string{"run", "-t"}, args...)...)
	c.TTY = &client.Size{Rows: 30, Cols: 100}
	c.EnvPolicy = client.InheritAll()
	c.Env = []string{"TERM=vt52"}
	term := &testTerminal{t: t, command: c}
	if term.out, err = c.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return term
}

func (m *testTerminal) write(text string) {
	m.t.Helper()
	if err := m.command.Write(context.Background(), []byte(text)); err != nil {
		m.t.Fatal(err)
	}
}

// expect waits for a text on the screen after the text found before, and returns what is
// between them.
func (m *testTerminal) expect(text string) (before string) {
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

// TestRunOnTerminal checks that a terminal at the other end is like one here: its size,
// its keys, its type.
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
			testkit.WaitFor(t, testkit.Patience, func() error {
				m.write("echo size $(stty size) .\n")
				m.expect("\nsize ")
				if size := m.expect(" .\r\n"); size != "41 99" {
					return fmt.Errorf("the size is %q", size)
				}
				return nil
			})
			// A key that means a signal here means it at the other end.
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

// TestRunPassesSignals checks that run forwards signals to the command and exits as the
// command does.
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

// TestRunEndsBySignal checks that a signal ends run although its server does not answer,
// before the start and after it.
func TestRunEndsBySignal(t *testing.T) {
	for _, test := range []struct {
		name    string
		stop    bool // stop the server once the command runs
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
				if server, err = startServer("", nil, "--without=supervisor", "--listen", "ws://127.0.0.1:0"); err != nil {
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
			command.Env = append(os.Environ(), signalTimeoutVariable+"=100ms")
			if len(test.signals) > 1 { // nothing but the second may end it
				command.Env = append(os.Environ(), signalTimeoutVariable+"=1h")
			}
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
				pid := server.command.Process.Pid
				_ = syscall.Kill(pid, syscall.SIGSTOP)
				defer syscall.Kill(pid, syscall.SIGCONT)
				// Its threads go on until the one that takes the signal runs; they may still
				// pass a signal of run on, which then waits for the end that nobody tells it.
				var status syscall.WaitStatus
				if _, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
					t.Fatalf("the server does not stop: %v, %v", status, err)
				}
			} else {
				conn, err := listener.Accept() // and stay silent
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = command.Wait()
			}()
			_ = command.Process.Signal(test.signals[0])
			last := test.signals[len(test.signals)-1]
			testkit.WaitFor(t, testkit.Patience, func() error {
				if over(done) {
					return nil
				}
				if len(test.signals) > 1 { // it counts once run has been patient with the first
					_ = command.Process.Signal(last)
				}
				return errors.New("run goes on")
			})
			if code, want := command.ProcessState.ExitCode(), 128+int(last); code != want {
				t.Errorf("exit code %d, not %d", code, want)
			}
		})
	}
}

// TestRunOnTerminalEndsInput checks that on a terminal input ends even in the middle of a
// line.
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
			case <-time.After(testkit.Patience):
				t.Fatalf("%s: run goes on after %q", name, input)
			}
			if err != nil || !strings.Contains(string(out), strings.TrimSpace(input)) {
				t.Errorf("%s: %q: %q, %v", name, input, out, err)
			}
		}
	}
}

// TestRunIntoBrokenPipe checks that the command ends when nobody reads the output any
// more.
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
			case <-time.After(testkit.Patience):
				t.Fatal("run goes on")
			}
			if code := command.ProcessState.ExitCode(); code != 141 || stderr.Len() > 0 {
				t.Errorf("exit code %d, %q", code, &stderr)
			}
		})
	}
}

// TestRunAdvises checks that run explains in one line what is wrong with a URL, or with
// the server there.
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
	authority := testkit.NewAuthority(t, "known")
	servesTLS := func(change func(*x509.Certificate)) string {
		file, key := authority.ServerWith(change)
		certificate, err := tls.LoadX509KeyPair(file, key)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
		server.StartTLS()
		t.Cleanup(server.Close)
		return "wss://" + server.Listener.Addr().String()
	}
	other := servesTLS(func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 1)} })
	old := servesTLS(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	for _, test := range []struct{ url, want string }{
		{other, "certificate is valid for 192.0.2.1, not 127.0.0.1; use a name that the certificate has, or a certificate for this one"},
		{old, "; renew the certificate of the server; if it is valid, set the clock of this machine"},
		{"ws://" + address, "the server refused the upgrade with status 200 OK; is this the URL of an exec-server?"},
		{"wss://" + address, "use ws:// for a server without TLS"},
		{"wss://" + secure.Listener.Addr().String(), "unknown authority; name the certificate of its authority by SSL_CERT_FILE"},
	} {
		command := exec.Command("exec-server", "run", "--url", test.url, "--", "true")
		if test.url == other || test.url == old {
			command.Env = append(os.Environ(), "SSL_CERT_FILE="+authority.File)
		}
		out, err := command.CombinedOutput()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != cli.ExitFailed || !strings.HasSuffix(string(out), test.want+"\n") || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%s: %v, %s", test.url, err, out)
		}
	}
}
