//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"execserver/internal/cli/run"
	"execserver/internal/testkit"
	"execserver/internal/testkit/transcript"
	"execserver/server"
)

// The test binary is also the program: under the name exec-server it runs main.
// signalTimeoutVariable sets run.SignalTimeout in the program that tests run.
const signalTimeoutVariable = "EXEC_SERVER_TEST_SIGNAL_TIMEOUT"

func TestMain(m *testing.M) {
	server.RunHelper()
	testkit.Main()
	if limit, err := time.ParseDuration(os.Getenv(signalTimeoutVariable)); err == nil {
		run.SignalTimeout = limit
	}
	testscript.Main(leakChecked{m}, map[string]func(){"exec-server": main})
}

type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	testkit.DefaultSignals()
	// A program built with the race detector takes a second to exit otherwise.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	if code := l.m.Run(); code != 0 {
		return code
	}
	if err := testkit.Leaks(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// quiet says that the machine does nothing else, so that times can be held to bounds.
var quiet = os.Getenv("QUIET_MACHINE") != ""

// promptly bounds how long the program may take to end. On a
// quiet machine it is shorter than any timeout that the program
// must not wait for.
var promptly = func() time.Duration {
	if quiet {
		return 3 * time.Second
	}
	return testkit.Patience
}()

// program is a running server.
type program struct {
	command *exec.Cmd
	stdin   *os.File
	stdout  *stream
	stderr  *stream
	url     string // from the banner on stdout; empty on stdio
	ended   chan struct{}
}

// startServer starts a server with the environment of the test and env, in dir, and waits
// until it serves. On stdio the caller reads stdout.
func startServer(dir string, env []string, args ...string) (*program, error) {
	command := exec.Command("exec-server", args...)
	command.Dir = dir
	command.Env = append(os.Environ(), env...)
	return launch(command, !onStdio(args))
}

func onStdio(args []string) bool {
	for i, arg := range args {
		if strings.HasPrefix(arg, "--listen=stdio") || arg == "--listen" && strings.HasPrefix(args[i+1], "stdio") {
			return true
		}
	}
	return false
}

// launch starts a command. listens says that the command prints where it listens.
func launch(command *exec.Cmd, listens bool) (*program, error) {
	p := &program{command: command, stdout: newStream(), stderr: newStream(), ended: make(chan struct{})}
	var theirs [3]*os.File
	var err error
	if theirs[0], p.stdin, err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.stdout.file, theirs[1], err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.stderr.file, theirs[2], err = os.Pipe(); err != nil {
		return nil, err
	}
	command.Stdin, command.Stdout, command.Stderr = theirs[0], theirs[1], theirs[2]
	err = command.Start()
	for _, f := range theirs {
		_ = f.Close()
	}
	if err != nil {
		return nil, errors.Join(err, p.stdin.Close(), p.stdout.file.Close(), p.stderr.file.Close())
	}
	if listens {
		go p.stdout.collect()
	}
	go p.stderr.collect()
	go func() {
		defer close(p.ended)
		_ = command.Wait() // ProcessState has the result
	}()
	if !listens {
		return p, nil
	}
	err = p.stdout.await(testkit.Patience, func(text string) bool {
		line, _, ok := strings.Cut(text, "\n")
		p.url = line
		return ok
	})
	if err != nil {
		p.kill()
		return nil, fmt.Errorf("%s does not say where it listens: %w; stderr: %s", command, err, p.stderr.text())
	}
	return p, nil
}

// newServer starts a server and kills it when the test ends.
func newServer(t *testing.T, args ...string) *program {
	t.Helper()
	p, err := startServer(t.TempDir(), nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

// address returns where the server listens: IP:PORT or a path.
func (p *program) address() string {
	_, address, _ := strings.Cut(p.url, "://")
	return address
}

// Connect implements transcript.Server.
func (p *program) Connect() (transcript.Conn, error) {
	switch scheme, _, _ := strings.Cut(p.url, "://"); scheme {
	case "":
		end := func() error { return errors.Join(p.stdin.Close(), p.stdout.file.Close()) }
		return transcript.NewLines(p.stdout.file, p.stdin, p.stdin.Close, end), nil
	case "unix":
		return transcript.DialUnix(p.address())
	}
	// These tests are not about the content of the certificate.
	return transcript.DialWebSocket(context.Background(), p.url, &tls.Config{InsecureSkipVerify: true}, nil)
}

// dial opens a connection of bytes to a listening server.
func (p *program) dial() (net.Conn, error) {
	network := "tcp"
	if strings.HasPrefix(p.url, "unix://") {
		network = "unix"
	}
	return net.DialTimeout(network, p.address(), testkit.Patience)
}

func (p *program) signal(s os.Signal) error { return p.command.Process.Signal(s) }

// wait waits for the end and returns the exit code, or the negative number of the signal
// that killed the program.
//
// It waits in steps: while the machine stands still, so does the program.
func (p *program) wait(limit time.Duration) (int, error) {
	const step = 100 * time.Millisecond
	for waited := time.Duration(0); !over(p.ended); {
		if waited >= limit {
			return 0, fmt.Errorf("still running after %s; stderr: %s", limit, p.stderr.text())
		}
		begun := time.Now()
		select {
		case <-p.ended:
		case <-time.After(step):
		}
		waited += min(time.Since(begun), 2*step)
	}
	status := p.command.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return -int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

func over(ended <-chan struct{}) bool {
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

// exits fails the test unless the program ends promptly with an exit code.
func (p *program) exits(t *testing.T, want int) {
	t.Helper()
	code, err := p.wait(promptly)
	if err != nil {
		t.Fatal(err)
	}
	if code != want {
		t.Errorf("exit code %d, want %d; stderr: %s", code, want, p.stderr.text())
	}
}

// kill kills the program and releases everything that the test has of it. The process that
// serves may be a child of the killed one. It ends in order, and has stderr until then.
func (p *program) kill() {
	_ = p.command.Process.Kill()
	<-p.ended
	_ = p.stdin.Close()
	select {
	case <-p.stderr.end:
	case <-time.After(9 * time.Second): // somebody else has it open
	}
	_ = p.stdout.file.Close()
	_ = p.stderr.file.Close()
}

// stream is the text that a program has written to stdout or stderr.
type stream struct {
	file *os.File

	mu    sync.Mutex
	bytes bytes.Buffer
	more  chan struct{} // closed when there is more, and then replaced
	end   chan struct{} // closed at the end of the stream
}

func newStream() *stream { return &stream{more: make(chan struct{}), end: make(chan struct{})} }

func (s *stream) collect() {
	defer close(s.end)
	buf := make([]byte, 4096)
	for {
		n, err := s.file.Read(buf)
		s.mu.Lock()
		s.bytes.Write(buf[:n])
		close(s.more)
		s.more = make(chan struct{})
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *stream) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes.String()
}

// all waits for the end of the stream and returns its text.
func (s *stream) all() string {
	<-s.end
	return s.text()
}

// await waits until wanted accepts the text, or the stream ends.
func (s *stream) await(limit time.Duration, wanted func(text string) bool) error {
	deadline := time.After(limit)
	for {
		s.mu.Lock()
		text, more := s.bytes.String(), s.more
		s.mu.Unlock()
		if wanted(text) {
			return nil
		}
		select {
		case <-more:
		case <-s.end:
			if wanted(s.text()) {
				return nil
			}
			return io.EOF
		case <-deadline:
			return os.ErrDeadlineExceeded
		}
	}
}
