package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStory is what a person does who looks after a machine: sign in, watch, take over,
// type, come back after the link was cut, search, and replay.
func TestStory(t *testing.T) {
	s := serve(t)
	if err := os.WriteFile(filepath.Join(s.dir, "text"), []byte("first line\nsecond line\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.start("editor", true, "vi", "-u", "NONE", "-N", "text")
	s.start("build", false, "sh", "-c", "for i in $(seq 40); do echo compile $i; done; echo careful >&2; sleep 1000")
	s.do("run", "--", "true")
	b := browse(t)
	b.signIn(s)
	b.shows(".list", "vi -u NONE -N text")
	b.picture("1-list")

	b.click(".process", "vi ")
	b.awaits("vi ", "second line")
	b.awaits("vi ", "~")
	b.click(".process", "compile")
	b.awaits("compile", "careful")
	b.picture("2-watch")

	// Read-only: nothing that is typed reaches the program.
	value[bool](b, `document.querySelector(".pane .xterm-helper-textarea").focus() || true`)
	b.press("dd")
	b.click(".pane button", "Take over")
	b.shows("dialog", "What you type goes to the program.")
	b.picture("3-ask")
	b.click("dialog .yes", "Take over")
	b.shows(".pane.owned", "Give back")
	b.awaits("vi ", "first line")
	b.press("ihello \x1b")
	b.awaits("vi ", "hello first line")
	b.picture("4-typed")
	b.press(":w\r")
	b.awaits("vi ", "written")
	if text, err := os.ReadFile(filepath.Join(s.dir, "text")); err != nil || !strings.HasPrefix(string(text), "hello first line\n") {
		t.Errorf("the file has %q, %v", text, err)
	}
	b.click(".pane.owned button", "Give back")
	b.until("the session is given back", `!document.querySelector(".pane.owned")`)
	b.clean()
}
