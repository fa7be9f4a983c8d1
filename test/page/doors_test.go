package page

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// tokens writes a file with two tokens.
func tokens(t *testing.T) (flags []string, token func(name string) string) {
	t.Helper()
	text := ""
	token = func(name string) string { return "the token of " + name + ", long enough" }
	for name, scope := range map[string]string{"ann": "full", "eve": "observe"} {
		text += fmt.Sprintf("[[token]]\nname = %q\nsha256 = \"%x\"\nscope = [%q]\n", name, sha256.Sum256([]byte(token(name))), scope)
	}
	return []string{"--tokens", testkit.Secret(t, text)}, token
}

// TestWrongSecrets opens the page with nothing, with a used and an expired link, and with
// wrong and right tokens.
func TestWrongSecrets(t *testing.T) {
	flags, token := tokens(t)
	s := serve(t, flags...)
	s.tokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(s.tokenFile, []byte(token("ann")), 0o600); err != nil {
		t.Fatal(err)
	}
	expiring, made := s.do("web"), time.Now()
	s.start("secret", true, "cat")
	b := browse(t)
	b.open(s.page())
	b.shows(".sign-in", "exec-server web")
	b.picture("10-sign-in")
	link := s.do("web")
	b.open(link)
	b.connected()
	b.shows(".list", "cat")
	b.click("button", "Sign out")
	b.shows(".sign-in", "exec-server web")
	b.open("about:blank")
	b.open(link)
	b.shows(".sign-in [role=alert]", "this link has been used")
	b.picture("11-used-link")
	signIn := func(with string) {
		value[bool](b, `(document.querySelector("#token").value = "", document.querySelector("#token").focus(), true)`)
		b.press(with + "\r")
	}
	signIn("not a token of this server")
	b.shows(".sign-in [role=alert]", "invalid websocket bearer token")
	// Who may only observe sees the session of the other, and cannot touch it.
	signIn(token("eve"))
	b.connected()
	b.shows(".list", "of ann")
	b.click(".process", "cat")
	b.awaits("cat", "")
	if n := value[int](b, `[...document.querySelectorAll(".pane button")].filter((e) => e.offsetParent && /Take over|Terminate/.test(e.textContent)).length`); n != 0 {
		t.Errorf("who may only observe has %d buttons that do more", n)
	}
	b.picture("12-observer")
	b.click("button", "Sign out")
	b.shows(".sign-in", "exec-server web")
	time.Sleep(time.Until(made.Add(61 * time.Second))) // its life is the promise that is tested
	b.open("about:blank")
	b.open(expiring)
	b.shows(".sign-in [role=alert]", "its minute is over")
	b.clean("401 (Unauthorized)")
}

// TestForeignPage has a page of another origin, which holds a good link, try everything.
func TestForeignPage(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.start("secret", true, "cat")
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<!doctype html><title>evil</title><body>")
	}))
	defer foreign.Close()
	b := browse(t)
	b.signIn(s) // a browser that is signed in
	link := s.do("web")
	b.open(foreign.URL)
	results := value[map[string]string](b, fmt.Sprintf(`(async () => {
		const base = %q, code = %q, results = {};
		const attempt = async (name, what) => { try { results[name] = String(await what()); } catch (error) { results[name] = "refused"; } };
		await attempt("sign in", async () => (await fetch(base + "sign-in", { method: "POST", body: JSON.stringify({ code }) })).text());
		await attempt("sign in, blindly", async () => { await fetch(base + "sign-in", { method: "POST", mode: "no-cors", body: JSON.stringify({ code }) }); return "refused"; });
		await attempt("ticket", async () => (await fetch(base + "ticket", { method: "POST", credentials: "include" })).text());
		await attempt("read the document", async () => (await fetch(base)).text());
		await attempt("import a module", async () => Object.keys(await import(base + "format.js")).join());
		for (const path of ["socket", "../"]) await attempt(path, () => new Promise((resolve, reject) => {
			const socket = new WebSocket(base.replace("http", "ws") + path);
			socket.onopen = () => resolve("open"); socket.onerror = reject;
		}));
		const frame = document.createElement("iframe");
		frame.src = base;
		await new Promise((resolve) => { frame.onload = resolve; document.body.append(frame); });
		await attempt("read a frame", () => frame.contentDocument ? frame.contentDocument.body.innerText : Promise.reject());
		const opened = window.open(base);
		await attempt("reach a window", async () => {
			while (opened && !opened.closed && opened.location.href === "about:blank") // the page's own, until the other one is there
				await new Promise((resolve) => setTimeout(resolve, 20));
			return opened && opened.document ? opened.document.body.innerText : Promise.reject();
		});
		return results;
	})()`, s.page(), link[len(s.page())+1:]))
	for what, result := range results {
		if result != "refused" {
			t.Errorf("a foreign page can %s: %.200s", what, result)
		}
	}
	// None of this has used the link.
	b.open(link)
	b.connected()
}

// TestLinkOfSomebodyElse opens a link of another principal, to which any page can lead a
// browser. The person is asked, sees who they are, and the key that is not used any more is
// worth nothing.
func TestLinkOfSomebodyElse(t *testing.T) {
	t.Parallel()
	flags, token := tokens(t)
	s := serve(t, flags...)
	s.tokenFile = filepath.Join(t.TempDir(), "token")
	link := func(name string) string {
		must(t, os.WriteFile(s.tokenFile, []byte(token(name)), 0o600))
		return s.do("web")
	}
	const kept = `JSON.parse(localStorage.getItem("exec-server key")).key`
	b := browse(t)
	b.open(link("ann"))
	b.connected()
	b.shows(".machine", "you are ann")
	first := value[string](b, kept)
	again := link("ann")
	b.open("about:blank") // or only the fragment changes, and the page reloads later
	b.open(again)         // the same person is not asked, and other windows go on
	b.connected()
	if value[string](b, kept) != first {
		t.Error("a second link has replaced a key that is good")
	}
	b.open("about:blank")
	b.open(again) // used, but who is signed in needs none
	b.connected()
	b.shows(".announced", "this link has been used")
	b.open("about:blank")
	b.open(link("eve"))
	b.shows("h1", "Sign in as somebody else?")
	b.shows("main", "You are signed in as ann. The link that you have opened is for eve.")
	b.picture("19-somebody-else")
	b.click("button", "Stay signed in as ann")
	b.connected()
	b.shows(".machine", "you are ann")
	b.open(link("eve"))
	b.click("button", "Sign in as eve")
	b.connected()
	b.shows(".machine", "you are eve")
	status := value[int](b, fmt.Sprintf(`fetch("ticket", { method: "POST", headers: { Authorization: "Bearer " + %q } }).then((r) => r.status)`, first))
	if status != http.StatusUnauthorized {
		t.Errorf("the key of ann is good for %d", status)
	}
	b.clean("401 (Unauthorized)")
}

// TestLinkOnAForeignPage follows a link on a page of another origin in a browser where nobody is
// signed in. Whoever made the link could watch what the person does there, who is asked.
func TestLinkOnAForeignPage(t *testing.T) {
	t.Parallel()
	flags, token := tokens(t)
	s := serve(t, flags...)
	s.tokenFile = filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(s.tokenFile, []byte(token("eve")), 0o600))
	link := ""
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<!doctype html><title>evil</title><a href="%s" rel="noreferrer">kittens</a>`, link)
	}))
	defer foreign.Close()
	b := browse(t)
	follow := func() {
		t.Helper()
		link = s.do("web")
		b.open(foreign.URL)
		b.click("a", "kittens")
		b.shows("h1", "Sign in?")
		b.shows("main", "by a link for eve")
	}
	const kept = `localStorage.getItem("exec-server key")`
	follow()
	b.picture("34-led-here")
	b.press("\r")
	b.shows(".sign-in", "exec-server web")
	if key := value[string](b, kept+` ?? ""`); key != "" {
		t.Errorf("the page keeps %s", key)
	}
	follow()
	b.click("button", "Sign in as eve")
	b.connected()
	b.open(foreign.URL)
	b.open(s.page()) // by itself
	b.connected()
	b.clean()
}
