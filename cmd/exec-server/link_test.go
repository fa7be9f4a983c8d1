//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/cli"
	"execserver/internal/testkit"
)

// linked is a command that works over a link that can break.
type linked struct {
	*program
	t    *testing.T
	link *testkit.Link
	url  string // of the server, without the link
	dir  string // in which the command of run runs
}

// newLinked starts a subcommand over a link. Its standard input is empty.
func newLinked(t *testing.T, command string, args ...string) *linked {
	t.Helper()
	dir := t.TempDir()
	server, err := startServer(dir, nil, "--listen", "ws://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.kill)
	link := testkit.NewLink(t, server.url)
	p, err := launch(exec.Command("exec-server", append([]string{command, "--url", link.Over(server.url)}, args...)...), false)
	if err != nil {
		t.Fatal(err)
	}
	go p.stdout.collect()
	t.Cleanup(p.kill)
	return &linked{p, t, link, server.url, dir}
}

func (l *linked) prints(s *stream, pattern string) {
	l.t.Helper()
	if err := s.await(testkit.Patience, regexp.MustCompile(pattern).MatchString); err != nil {
		l.t.Fatalf("%q is not printed: %v; stdout: %s; stderr: %s", pattern, err, l.stdout.text(), l.stderr.text())
	}
}

// ends expects the program to end with an exit code, after attempts to connect.
func (l *linked) ends(want int) {
	l.t.Helper()
	code, err := l.wait(testkit.Patience)
	if err != nil || code != want {
		l.t.Errorf("exit code %d, %v, want %d; stderr: %s", code, err, want, l.stderr.text())
	}
}

// TestRunOverBrokenLink checks that run tries for as long as the server keeps the session,
// and tells a person what it waits for.
func TestRunOverBrokenLink(t *testing.T) {
	t.Parallel()
	l := newLinked(t, "run", "--", "sh", "-c", "echo one; until test -e go; do sleep 0.05; done; echo two; exit 7")
	l.prints(l.stdout, `one\n`)
	l.link.Set(testkit.LinkRefused)
	// The server keeps the session for 30 minutes if it cannot know why the link broke.
	l.prints(l.stderr, `\Ano link to 127\.0\.0\.1:\d+ since \d\d:\d\d:\d\d; trying again for another (31|30)m\n\z`)
	if err := os.WriteFile(filepath.Join(l.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.link.Set(testkit.LinkOpen)
	l.ends(7)
	if out := l.stdout.all(); out != "one\ntwo\n" {
		t.Errorf("the output: %q", out)
	}
	l.prints(l.stderr, `\n(the link to 127\.0\.0\.1:\d+ is back\n)?\z`) // unless run has ended before it could say so
}

// TestRunInterruptedWithoutLink checks that a person can end run while there is no link, and
// learns how to come back.
func TestRunInterruptedWithoutLink(t *testing.T) {
	t.Parallel()
	l := newLinked(t, "run", "--", "sh", "-c", "echo one; until test -e go; do sleep 0.05; done; echo two; exit 7")
	l.prints(l.stdout, `one\n`)
	l.link.Set(testkit.LinkRefused)
	l.prints(l.stderr, `\Ano link to`)
	testkit.WaitFor(t, testkit.Patience, func() error { // run does not wait for the server when they repeat
		select {
		case <-l.ended:
			return nil
		default:
			return errors.Join(errors.New("run goes on"), l.signal(syscall.SIGINT))
		}
	})
	l.ends(130)
	found := regexp.MustCompile(`\nError: the server has not confirmed the signal \([a-z]+\); .*\ncome back with: exec-server (attach --url \S+ \S+)\n\z`).FindStringSubmatch(l.stderr.all())
	if found == nil {
		t.Fatalf("stderr: %s", l.stderr.text())
	}
	l.link.Set(testkit.LinkOpen)
	if err := os.WriteFile(filepath.Join(l.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("exec-server", strings.Fields(found[1])...).Output()
	if got := fmt.Sprintf("%s%v", out, err); got != "one\ntwo\nexit status 7" {
		t.Errorf("attach: %s", got)
	}
}

// TestRunAfterTheServer checks that run does not wait for a server that has shut down.
func TestRunAfterTheServer(t *testing.T) {
	for _, listen := range []string{"ws://127.0.0.1:0", "unix://" + filepath.Join(testkit.SocketDir(t), "s")} {
		p := newServer(t, "--listen", listen)
		run := exec.Command("exec-server", "run", "--url", p.url, "--", "sh", "-c", "echo; exec sleep 3600")
		var stderr testkit.Buffer
		run.Stderr = &stderr
		stdout, err := run.StdoutPipe()
		if err == nil {
			err = run.Start()
		}
		if err == nil {
			_, err = stdout.Read(make([]byte, 1))
		}
		if err == nil {
			err = p.signal(syscall.SIGTERM)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = run.Wait()
		if got, want := stderr.String(), "Error: the server has shut down, and has ended the command\n"; run.ProcessState.ExitCode() != cli.ExitFailed || got != want {
			t.Errorf("%s: %v, %q, want %q", listen, run.ProcessState, got, want)
		}
		p.exits(t, 0)
	}
}

// TestRunAfterTheSession checks that run gives up at once if the server has ended the
// session meanwhile.
func TestRunAfterTheSession(t *testing.T) {
	t.Parallel()
	l := newLinked(t, "run", "--", "sh", "-c", "echo $$; exec sleep 3600")
	l.prints(l.stdout, `\d\n`)
	pid, err := strconv.Atoi(strings.TrimSpace(l.stdout.text()))
	if err != nil {
		t.Fatal(err)
	}
	l.link.Set(testkit.LinkRefused)
	l.prints(l.stderr, `\Ano link to .* for another \d+m?\d*s?\n`)
	var sessions []struct{ SessionID string }
	out, err := exec.Command("exec-server", "sessions", "--url", l.url, "--json").Output()
	if err != nil || json.Unmarshal(out, &sessions) != nil || len(sessions) != 1 {
		t.Fatalf("the sessions: %s, %v", out, err)
	}
	if out, err := exec.Command("exec-server", "sessions", "--url", l.url, "--end", sessions[0].SessionID).CombinedOutput(); err != nil {
		t.Fatalf("end the session: %s, %v", out, err)
	}
	testkit.Gone(t, pid) // with the session, which run must not resume before it ends
	l.link.Set(testkit.LinkOpen)
	l.ends(cli.ExitFailed)
	l.prints(l.stderr, `\nError: the server has ended the session, and the command with it\n\z`)
}
