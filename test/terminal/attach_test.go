//go:build unix

package terminal

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/testkit"
)

// TestDetachAndAttach checks that a command goes on when its person detaches, and that
// another terminal shows it as it was.
func TestDetachAndAttach(t *testing.T) {
	testkit.Need(t, "vi")
	s, network := newShell(t, "--name work")
	s.line("echo be''fore; vi -u NONE -N text")
	s.await("~\n~")
	s.write("itext")
	s.await("text\n~")
	s.press("Escape")
	s.press("Enter") // or ~ changes a letter
	s.shows("text")
	s.write("~d")
	s.await("detached; kept for 8h\ncome back with: exec-server attach --url " + "ws://" + network.Address() + " work")
	s.isLocal()

	other := newScreen(t)
	attach := "exec-server attach --url " + "ws://" + network.Address() + " work"
	other.line(attach)
	other.ahead(":w\r")
	other.until("does not show the editor", func(shown string) bool { return strings.HasPrefix(shown, "text\n") })
	testkit.WaitFor(t, testkit.Patience, func() error { // the editor's answer goes if a slow one draws its screen after it
		text, err := os.ReadFile(filepath.Join(s.far, "text"))
		if err == nil && string(text) != "text\n" {
			err = fmt.Errorf("the file has %q", text)
		}
		return err
	})
	other.input(":q")
	other.prompt("far$")
	other.shows("before")
	other.line("exit 3")
	other.prompt("local$")
	other.line("echo code $?")
	other.await("\ncode 3")
	other.isLocal()
	other.line(attach)
	other.await("Error: ")
}

// TestLeaveRunning checks that run -d leaves a command at the server, with its input open
// for those who attach.
func TestLeaveRunning(t *testing.T) {
	_, address := startServer(t)
	s := newScreen(t)
	flags := "--url ws://" + address + " "
	s.line("exec-server run -d -i --keep 1h " + flags + "sh -c 'echo be\"\"gun; read line; echo got $line; sleep 1; exit 4'")
	s.await("\nsh\n")
	s.isLocal()
	s.line("exec-server attach " + flags + "sh")
	s.await("\nbegun")
	s.press("C-c")
	s.await("left; the command continues, kept for 1h\ncome back with: exec-server attach " + flags + "sh")
	s.isLocal()
	s.line("exec-server attach " + flags + "sh; echo code $?")
	s.await("\nbegun")
	s.input("input")
	s.await("got input\ncode 4")
	s.prompt("local$")

	s.line("exec-server run -d -t --name shell " + flags + "-e PS1='far$ ' sh")
	s.await("shell\nkept for 8h\ncome back with: ")
	s.isLocal()
	s.line("exec-server attach " + flags + "shell")
	s.prompt("far$")
	s.write("~.")
	s.await("left; the command continues, kept for 8h")
	s.isLocal()
}

// TestWatchers checks that watchers see what the owner sees, that their keys go nowhere,
// and that a person who takes the session over gets it.
func TestWatchers(t *testing.T) {
	owner, network := newShell(t, "--name work")
	owner.write("~d") // to give the session a name
	owner.await("detached")
	attach := "exec-server attach --url " + "ws://" + network.Address() + " work"
	owner.isLocal()
	owner.line(attach)
	owner.prompt("far$")

	var watchers []*screen
	for range 2 {
		w := newScreen(t)
		w.line(attach + " --read-only")
		w.prompt("far$")
		watchers = append(watchers, w)
	}
	owner.line("echo for e''veryone")
	owner.await("for everyone")
	for _, w := range watchers {
		w.await("for everyone")
		w.write("echo of a w''atcher\r")
	}
	owner.line("echo last l''ine")
	owner.await("last line")
	for _, w := range append(watchers, owner) {
		w.shows("last line")
		w.gone("atcher")
	}

	watchers[1].press("C-c")
	watchers[1].isLocal()
	watchers[1].line(attach)
	watchers[1].await("last line")
	watchers[1].prompt("far$")
	watchers[1].line("echo by the new o''wner")
	watchers[0].await("by the new owner")
	owner.await("another client has taken the session over")
	owner.await("\ntake it back: " + attach)
	owner.isLocal()
	watchers[1].line("exit")
	watchers[1].isLocal()
	watchers[0].isLocal()
}

// TestLateWatcher checks that a watcher of a program with the whole screen for itself sees the
// screen as it is, without the output before it, and then goes on.
func TestLateWatcher(t *testing.T) {
	testkit.Need(t, "vi")
	owner, network := newShell(t, "--name work")
	owner.write("~d") // to give the session a name
	owner.await("detached")
	attach := "exec-server attach --url " + "ws://" + network.Address() + " work"
	owner.isLocal()
	owner.line(attach)
	owner.prompt("far$")
	owner.line("seq 1000 1400; vi -u NONE -N text")
	owner.await("~\n~")
	owner.write("itext")
	owner.await("text\n~")

	w := newScreen(t)
	w.line("echo here be''fore; " + attach + " --read-only")
	w.await("text\n~")
	owner.write(" and more")
	w.await("text and more\n~")
	history, err := w.tmux.Run("capture-pane", "-p", "-J", "-S", "-")
	if err != nil || strings.Contains(history, "1234") || !strings.Contains(history, "here before") {
		t.Errorf("the watcher's terminal has %q, %v", history, err)
	}
	w.press("C-c")
	w.isLocal()
	owner.press("Escape")
	owner.input(":q!")
	owner.prompt("far$")
	owner.line("exit")
	owner.isLocal()
}
