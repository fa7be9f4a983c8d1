package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// TestStory is what a person does who looks after a machine: sign in, watch, take over,
// type, come back after the link was cut, search, and replay.
func TestStory(t *testing.T) {
	t.Parallel()
	s := serve(t)
	if err := os.WriteFile(filepath.Join(s.dir, "text"), []byte("first line\nsecond line\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.start("editor", true, "vi", "-u", "NONE", "-N", "text")
	s.start("build", false, "sh", "-c", "for i in $(seq 40); do echo compile $i; done; sleep 0.5; echo careful >&2; exec sleep 1000")
	b, n := browse(t), testkit.NewLink(t, s.url)
	b.open(n.Over(s.do("web")))
	b.connected()
	if got := value[string](b, "location.href"); strings.Contains(got, "#") {
		t.Errorf("the code of the link stays in the address: %s", got)
	}
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
	if text, err := os.ReadFile(filepath.Join(s.dir, "text")); err != nil || string(text) != "hello first line\nsecond line\n" {
		t.Errorf("the file has %q, %v", text, err)
	}

	// The link is cut: the page says so, and comes back by itself. The session is nobody's
	// then, and can be taken again.
	n.Set(testkit.LinkRefused)
	b.shows(".connection", "not connected")
	b.shows(".announced", "You no longer have the session")
	b.picture("5-cut")
	s.do("kill", "--signal", "WINCH", "editor") // a program that goes on meanwhile
	n.Set(testkit.LinkOpen)
	b.connected()
	b.click(".pane button", "Take over")
	b.click("dialog .yes", "Take over")
	b.shows(".pane.owned", "Give back")
	b.press("ofrom the second connection\x1b")
	b.awaits("vi ", "from the second connection")
	b.click(".pane.owned button", "Give back")
	b.until("the session is given back", `!document.querySelector(".pane.owned")`)

	build := `[...document.querySelectorAll(".pane")].find((e) => e.innerText.includes("compile"))`
	value[bool](b, `(`+build+`.scrollIntoView(), [...`+build+`.querySelectorAll("button")].find((e) => e.textContent === "Search").click(), true)`)
	b.until("the search has the focus", `document.activeElement.type === "search"`)
	b.press("Compile 3\r")
	b.until("the lines are found", build+`.querySelectorAll(".found li").length === 11`)
	if got := value[string](b, build+`.querySelector(".search p").innerText`); !strings.HasPrefix(got, "11 lines of ") {
		t.Errorf("the search says %q", got)
	}
	b.picture("6-search")

	s.do("kill", "--signal", "TERM", "build")
	b.until("the list shows the ending", `document.querySelector(".list").innerText.includes("killed by SIGTERM, ended by a client")`)
	value[bool](b, `[...`+build+`.querySelectorAll("button")].find((e) => e.textContent === "Details").click() || true`)
	b.until("the details show the ending", build+`.querySelector(".details").innerText.includes("killed by SIGTERM")`)
	b.picture("7-ended")

	b.click(".tabs button", "Recordings")
	b.click(".recordings button", "compile")
	b.until("the recording shows its end", `document.querySelector(".player .xterm-rows")?.innerText.replaceAll("\u00a0", " ").includes("careful")`)
	value[bool](b, `(() => { const line = document.querySelector(".player input[type=range]"); line.value = line.max; line.dispatchEvent(new Event("input")); return true })()`)
	b.shows(".player .state", "SIGTERM")
	b.picture("8-replay")
	b.click(".recordings button", "vi -u NONE")
	b.until("another recording is shown", `document.querySelector(".player .xterm-rows")?.innerText.includes("~")`)
	value[bool](b, `(() => { const line = document.querySelector(".player input[type=range]"); line.value = line.max; line.dispatchEvent(new Event("input")); return true })()`)
	b.until("its end is shown", `document.querySelector(".player .xterm-rows")?.innerText.replaceAll("\u00a0", " ").includes("from the second connection")`)
	value[bool](b, `(() => { const line = document.querySelector(".player input[type=range]"); line.value = 0; line.dispatchEvent(new Event("input")); return true })()`)
	b.until("and its beginning again", `!document.querySelector(".player .xterm-rows")?.innerText.replaceAll("\u00a0", " ").includes("hello")`)

	b.click("button", "Sign out")
	b.shows(".sign-in", "exec-server web")
	b.clean("WebSocket connection to", "net::ERR_")
}

// TestKeyboard goes through the page without a mouse.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.start("one", true, "cat")
	s.start("two", true, "sh")
	b := browse(t)
	b.signIn(s)
	b.shows(".list", "cat")
	b.press("/")
	b.until("the filter has the focus", `document.activeElement.id === "filter"`)
	b.press("two")
	b.until("one is left", `document.querySelectorAll("button.process").length === 1`)
	b.press("\t")
	b.until("the process has the focus", `document.activeElement.matches("button.process")`)
	b.press("\r")
	b.until("its pane is open", `document.querySelector(".pane .xterm-rows")?.innerText.includes("$") || document.querySelector(".pane .xterm-rows")?.innerText.includes("#")`)
	b.press("\t")
	b.until("its first button has the focus", `document.activeElement.textContent === "Take over"`)
	b.press("\r")
	b.until("the dialog is open", `document.querySelector("dialog").open`)
	b.press("\t\r")
	b.shows(".pane.owned", "Give back")
	b.until("the terminal has the focus", `document.activeElement.matches(".xterm-helper-textarea")`)
	b.press("echo a''b\r")
	b.awaits("sh", "ab")
	b.pressShiftEscape()
	b.until("the terminal has lost the focus", `document.activeElement.matches(".pane h3")`)
	b.press("\t\r")
	b.until("the session is given back", `!document.querySelector(".pane.owned")`)
	b.clean()
}

// TestHandOver takes a session from a person at a terminal, and loses it to another one.
func TestHandOver(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.start("work", true, "cat")
	b, other := browse(t), browse(t)
	for _, window := range []*browser{b, other} {
		window.signIn(s)
		window.click(".process", "cat")
		window.awaits("cat", " ")
	}
	b.click(".pane button", "Take over")
	b.click("dialog .yes", "Take over")
	b.shows(".pane.owned", "Give back")
	b.press("mine\r")
	other.awaits("cat", "mine\n")
	other.click(".pane button", "Take over")
	other.shows("dialog", "exec-server-web loses the session")
	other.click("dialog .yes", "Take over")
	other.shows(".pane.owned", "Give back")
	b.shows(".announced", "Somebody else has taken the session over.")
	b.until("the first window has no session", `!document.querySelector(".pane.owned")`)
	other.press("yours\r")
	b.awaits("cat", "yours\n")
	b.clean()
	other.clean()
}

// TestScreenReader checks what a terminal tells screen readers, and that everything has a
// name.
func TestScreenReader(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.start("one", true, "sh", "-c", "echo something to hear; sleep 1000")
	b := browse(t)
	b.signIn(s)
	b.click(".process", "something")
	b.awaits("something", "something to hear")
	b.click(".settings label", "screen reader")
	b.until("the terminal has text for screen readers", `document.querySelector(".xterm-accessibility")?.innerText.includes("something to hear")`)
	unnamed := value[[]string](b, `[...document.querySelectorAll("button, input, select, textarea, svg[role=img], nav, article, dialog")]
		.filter((e) => e.offsetParent || e.getBoundingClientRect().width > 0)
		.filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length || e.getAttribute("aria-labelledby")))
		.map((e) => e.outerHTML.slice(0, 120))`)
	for _, element := range unnamed {
		t.Errorf("this has no name: %s", element)
	}
	b.clean()
}

// TestTree shows what a process has left running below it, and many sessions of others.
func TestTree(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.start("leaves", false, "sh", "-c", "sleep 987 >/dev/null 2>&1 </dev/null & exit 0")
	b := browse(t)
	b.signIn(s)
	b.until("what was left is below its parent", `document.querySelector("li + li.nested")?.innerText.includes("sleep 987")`)
	b.shows("li.nested", "left running")
	b.picture("9-tree")
	b.click(".process", "sh -c")
	b.shows(".pane .state", "exit status 0")
	b.clean()
}

// TestFiles shows files that changed before somebody looked, and those that change then.
func TestFiles(t *testing.T) {
	t.Parallel()
	s := serve(t)
	old := filepath.Join(s.dir, "old")
	must(t, os.WriteFile(old, nil, 0o644))
	must(t, os.Chtimes(old, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	must(t, os.Mkdir(filepath.Join(s.dir, "%41 <b>"), 0o755))
	s.start("agent", true, "sh", "-c", "echo before > '%41 <b>/before'; mkdir .git; echo x > .git/index; echo written; exec cat")
	b := browse(t)
	b.signIn(s)
	b.click(".process", "written")
	b.awaits("written", "written")
	b.click(".pane button", "Files")
	b.shows(".files", "%41 <b>/before")
	shown := b.text(".files .found")
	if strings.Contains(shown, "old") || strings.Contains(shown, "index") {
		t.Errorf("the list shows %q", shown)
	}
	must(t, os.WriteFile(filepath.Join(s.dir, "during"), []byte("more"), 0o644))
	b.shows(".files", "created during")
	must(t, os.Remove(old))
	b.shows(".files", "removed old")
	b.picture("17-files")
	if got := value[bool](b, `document.querySelector(".list").innerText.includes("exec-server-web")`); got {
		t.Error("the list shows the session by which the page looks at files")
	}
	b.click(".pane button", "Files")
	b.until("the session of the page has ended", `!document.querySelector(".files").offsetParent`)
	s.until("the session of the page has ended", func() bool { return !strings.Contains(s.do("sessions"), "exec-server-web") })
	b.clean()
}

// TestCommands goes from command to command of a session, and stays with the newest.
func TestCommands(t *testing.T) {
	t.Parallel()
	s := serve(t)
	agent := s.agent()
	agent.start("echo this is one")
	agent.start("echo this is two")
	b := browse(t)
	b.signIn(s)
	b.click(".process", "is one")
	b.awaits("one", "this is one")
	b.click(".pane button", "›")
	b.awaits("two", "this is two")
	if n := value[int](b, `document.querySelectorAll(".pane").length`); n != 1 {
		t.Errorf("there are %d panes", n)
	}
	if !value[bool](b, `document.querySelector("[aria-label='Later command']").disabled`) {
		t.Error("there is a command after the last one")
	}
	value[bool](b, `document.querySelector(".pane h3").focus() || true`)
	b.press("[")
	b.awaits("one", "this is one")
	b.press("]")
	b.awaits("two", "this is two")
	// The newest one may be open already, and what is open in a pane stays open.
	b.click(".process", "is one")
	b.awaits("one", "this is one")
	value[bool](b, `[...document.querySelectorAll(".pane")].find((e) => e.innerText.includes("this is one")).querySelector("[aria-pressed]").click() || true`)
	b.until("one pane is left", `document.querySelectorAll(".pane").length === 1`)
	b.click(".pane button", "Details")
	agent.start("echo this is three")
	b.awaits("three", "this is three")
	b.shows(".details", "Directory")
	agent.start("echo this is four")
	b.awaits("four", "this is four")
	b.picture("18-newest")
	b.press("[")
	b.awaits("three", "this is three")
	agent.start("echo this is five")
	b.shows(".list", "this is five")
	b.awaits("three", "this is three")
	b.clean()
}
