//go:build unix

package terminal

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// A screen is a terminal of tmux with a shell of this machine, whose prompt is "local$ ".
//
// It does not let a test run ahead of the programs. After Enter the test must see
// something new before it types again: else a program that clears the screen, or that
// discards what it finds in the terminal when it starts, takes the keys away on a slow
// machine. And a text that the test awaits must not have been there before the last key:
// else the test sees the old one.
type screen struct {
	t      *testing.T
	tmux   testkit.Tmux
	dir    string // where the shell is
	far    string // where the shell elsewhere is
	before string // what was shown before the last key
	blind  bool   // Enter was the last key, and the test has seen nothing since
}

func newScreen(t *testing.T) *screen {
	t.Helper()
	// The path of a unix socket must be short.
	socket, err := os.MkdirTemp("", "tmux-")
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, tmux: testkit.Tmux(filepath.Join(socket, "s")), dir: t.TempDir()}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the screen:\n%s", s.shown())
		}
		_, _ = s.tmux.Run("kill-server")
		_ = os.RemoveAll(socket)
	})
	// Bash edits lines itself, so a carriage return in the queue of the terminal is Enter.
	shell := "sh"
	if _, err := exec.LookPath("bash"); err == nil {
		shell = "bash --norc --noprofile"
	}
	cmd := s.tmux.Command("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "20", "-c", s.dir,
		"exec env -u ENV PS1='local$ ' "+shell)
	cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "SHELL=/bin/sh", "TERM=xterm-256color")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tmux: %v\n%s", err, out)
	}
	s.await("local$")
	return s
}

// line types a line at the prompt of a shell.
func (s *screen) line(text string) {
	s.t.Helper()
	if strings.Contains(text, "clear") {
		s.t.Fatalf("%q would clear the screen when the test has gone on; use clear", text)
	}
	s.enter(text)
}

// clear makes the shell clear the screen.
func (s *screen) clear() {
	s.t.Helper()
	prompt := s.enter("clear")
	s.until("is not clear", func(shown string) bool { return shown == prompt })
}

// enter types a line at a prompt, and returns the prompt. When it presses Enter, the
// prompt is no longer the last line, so that the next prompt is a new one.
func (s *screen) enter(text string) (prompt string) {
	s.t.Helper()
	s.until("shows no prompt", func(shown string) bool {
		prompt = lastLine(shown)
		return prompt == "local$" || prompt == "far$"
	})
	s.keys("-l", text)
	s.until("does not show the line that was typed", func(shown string) bool {
		return lastLine(shown) == prompt+" "+strings.TrimRight(text, " ")
	})
	s.press("Enter")
	return prompt
}

// input types a line for a program that is not a shell.
func (s *screen) input(text string) {
	s.t.Helper()
	s.keys("-l", text)
	s.press("Enter")
}

// write types a text.
func (s *screen) write(text string) {
	s.t.Helper()
	s.keys("-l", text)
	s.blind = strings.HasSuffix(text, "\r")
}

// ahead types a text for a program that may not read yet. It must be one that loses
// nothing.
func (s *screen) ahead(text string) {
	s.t.Helper()
	s.blind = false
	s.write(text)
}

// press presses keys that tmux has names for.
func (s *screen) press(keys ...string) {
	s.t.Helper()
	s.keys(keys...)
	s.blind = keys[len(keys)-1] == "Enter"
}

func (s *screen) keys(args ...string) {
	s.t.Helper()
	if s.blind {
		s.t.Fatalf("the test types %q before it has seen what Enter did", args)
	}
	s.before = s.shown()
	if _, err := s.tmux.Run(append([]string{"send-keys"}, args...)...); err != nil {
		s.t.Fatal(err)
	}
}

// resize changes the size of the terminal.
func (s *screen) resize(cols, rows int) {
	s.t.Helper()
	if _, err := s.tmux.Run("resize-window", "-x", fmt.Sprint(cols), "-y", fmt.Sprint(rows)); err != nil {
		s.t.Fatal(err)
	}
}

// shown returns what the screen shows, without spaces at the end of a line and without
// empty lines at its end. A line that is too long for the screen is one line.
func (s *screen) shown() string {
	text, err := s.tmux.Run("capture-pane", "-p", "-J")
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

func lastLine(shown string) string { return shown[strings.LastIndexByte(shown, '\n')+1:] }

// await waits until the screen shows a text that it did not show before the last key.
func (s *screen) await(text string) {
	s.t.Helper()
	s.fresh(fmt.Sprintf("show %q", text), func(shown string) bool { return strings.Contains(shown, text) })
}

// prompt waits until the last line is a prompt, and was not before the last key.
func (s *screen) prompt(text string) {
	s.t.Helper()
	s.fresh(fmt.Sprintf("end with %q", text), func(shown string) bool { return lastLine(shown) == text })
}

// shows waits until the screen shows a text, perhaps since long.
func (s *screen) shows(text string) {
	s.t.Helper()
	s.until(fmt.Sprintf("does not show %q", text), func(shown string) bool { return strings.Contains(shown, text) })
}

// gone waits until the screen does not show a text any more.
func (s *screen) gone(text string) {
	s.t.Helper()
	s.until(fmt.Sprintf("shows %q", text), func(shown string) bool { return !strings.Contains(shown, text) })
}

// fresh is until for what was not so before the last key.
func (s *screen) fresh(what string, check func(shown string) bool) {
	s.t.Helper()
	if s.before != "" && check(s.before) {
		s.t.Fatalf("the test waits for the screen to %s, which it did before the last key:\n%s", what, s.before)
	}
	s.until("does not "+what, check)
}

func (s *screen) until(problem string, check func(shown string) bool) {
	s.t.Helper()
	testkit.WaitFor(s.t, testkit.Patience, func() error {
		if shown := s.shown(); !check(shown) {
			return fmt.Errorf("the screen %s:\n%s", problem, shown)
		}
		return nil
	})
	s.blind = false
}

// run starts a shell elsewhere, whose prompt is "far$ ".
func (s *screen) run(url string, flags string) {
	s.t.Helper()
	s.line("exec-server run -t -e PS1='far$ ' --url " + url + " " + flags + " sh")
	s.prompt("far$")
}

// isLocal checks that the shell of this machine has the terminal, in its usual mode.
func (s *screen) isLocal() {
	s.t.Helper()
	s.prompt("local$")
	s.line("stty -a | tr ' ;' '\\n\\n' | grep -cx -e echo -e icanon -e opost")
	s.await("\n3\nlocal$")
	s.clear()
}

// pid returns the id of a process from a file elsewhere.
func (s *screen) pid(name string) int {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.far, name))
	if err != nil {
		s.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		s.t.Fatal(err)
	}
	return pid
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// kill sends a signal to the program that runs in the terminal.
func (s *screen) kill(signal syscall.Signal) {
	s.t.Helper()
	for _, child := range s.children() {
		if err := syscall.Kill(child, signal); err != nil {
			s.t.Fatal(err)
		}
	}
}

// children lists the children of the shell of this machine.
func (s *screen) children() []int {
	s.t.Helper()
	text, err := s.tmux.Run("display-message", "-p", "#{pane_pid}")
	if err != nil {
		s.t.Fatal(err)
	}
	shell, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		s.t.Fatal(err)
	}
	return testkit.Children(shell)
}
