package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// nasty is what a program could write to reach beyond its terminal.
var nasty = "\x1b]0;<img src=x onerror=alert(1)>\x07" + // titles
	"\x1b]2;</title><script>document.title='owned'</script>\x1b\\" +
	"\x1b]8;;javascript:document.title='owned'\x1b\\a link\x1b]8;;\x1b\\ " + // links
	"\x1b]8;;http://127.0.0.1:1/\x07another\x1b]8;;\x07 http://127.0.0.1:1/plain " +
	"\x1b]52;c;ZXZpbA==\x07" + // the clipboard
	"\x1b]10;?\x07\x1b]11;?\x07\x1b]4;1;?\x07\x1b[c\x1b[>c\x1b[6n\x1b[5n\x1b[18t\x1b[21t\x1bP$qm\x1b\\\x1b[?1;2$p\x05" + // queries
	"\x1b[8;500;500t\x1b[9;1t\x1b[3;0;0t\x1b[2t" + // the window
	"\x1b]1337;File=inline=1:AAAA\x07\x1b_Gf=100;AAAA\x1b\\\x1bPq#0;2;0;0;0#0~~\x1b\\" + // pictures
	"\x1b]9;hello\x07\x1b]777;notify;a;b\x07\x07\x07" + // notices and bells
	"\x1b[?1003h\x1b[?1006h\x1b[?2004h\x1b[?1004h" + // reports
	"<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&lt;b&gt; ${1+1} " +
	"\u202egnp.exe\u202c \u0000\u009b2J \xff\xfe\xc0\x80 \xf0\x9f\x98\x80 " +
	strings.Repeat("a\u0301\u0302\u0303\u0304", 2000) + "\x1b[" + strings.Repeat("9;", 4000) + "9999999999m" +
	"\x1b]" + strings.Repeat("x", 1<<16) + "\x07\x1bP" + strings.Repeat("y", 1<<16) + "\x1b\\" +
	"\r\nthe end of it\r\n"

// TestHostileProgram shows a program whose every text is an attack, and then one that
// writes 200 MB.
func TestHostileProgram(t *testing.T) {
	s := serve(t, "--detached-output", "evict")
	if err := os.WriteFile(filepath.Join(s.dir, "nasty"), []byte(nasty), 0o644); err != nil {
		t.Fatal(err)
	}
	name := "<img src=x onerror=document.title='owned'>"
	if err := os.Mkdir(filepath.Join(s.dir, name), 0o755); err != nil {
		t.Fatal(err)
	}
	script := "cd '" + strings.ReplaceAll(name, "'", `'\''`) + "'; cat ../nasty; read line; echo got \"$line\"; exec sleep 1000 # " + name + "\x1b[2J"
	s.start("hostile", true, "sh", "-c", script)
	s.start("pipes", false, "sh", "-c", "cat nasty nasty >&2; cat nasty; exec sleep 999")
	b := browse(t)
	b.signIn(s)
	b.click(".process", "sleep 1000")
	b.click(".process", "sleep 999")
	b.awaits("sleep 1000", "the end of it")
	b.awaits("sleep 999", "the end of it")
	harmless := func(step string) {
		t.Helper()
		if title := value[string](b, "document.title"); strings.Contains(title, "owned") || !strings.Contains(title, "exec-server") {
			t.Errorf("%s: the title is %q", step, title)
		}
		if n := value[int](b, `document.querySelectorAll("script:not([src]), img, a, iframe, object, embed, form[action]").length`); n != 0 {
			t.Errorf("%s: the page has %d elements that it does not make", step, n)
		}
	}
	harmless("output")
	b.picture("13-hostile")
	// A click on a link does nothing.
	value[bool](b, `(() => { for (const row of document.querySelectorAll(".xterm-rows span")) if (/link|another|127/.test(row.textContent)) {
		const at = row.getBoundingClientRect(), where = { bubbles: true, clientX: at.x + 3, clientY: at.y + 3 };
		for (const kind of ["mousemove", "mousedown", "mouseup", "click"]) row.dispatchEvent(new MouseEvent(kind, where));
	} return true })()`)
	harmless("a click on a link")
	// Nobody has taken the session over, so the answers to its queries go nowhere.
	if shown := b.screen("sleep 1000"); strings.Contains(shown, "got") {
		t.Errorf("a watcher has answered the program: %q", shown)
	}
	b.click(".tabs button", "Recordings")
	b.click(".recordings button", "sleep 1000")
	b.until("the recording is shown", `document.querySelector(".player .xterm-rows")?.innerText.replaceAll("\u00a0", " ").includes("the end of it")`)
	harmless("a recording")
	b.clean()

	b.click(".tabs button", "Processes")
	s.start("much", true, "sh", "-c", "head -c 200000000 /dev/zero | tr '\\0' x | fold -w 79; echo; echo all of it; exec sleep 998")
	b.click(".process", "sleep 998")
	b.awaits("sleep 998", "xxxxxxxx")
	began := time.Now()
	b.until("the end of 200 MB", rowsOf("sleep 998")+`?.includes("all of it")`)
	t.Logf("200 MB of output ended %s after their first picture", time.Since(began).Round(time.Second))
	harmless("200 MB")
	heap := value[float64](b, "performance.memory.usedJSHeapSize") / (1 << 20)
	t.Logf("the page uses %.0f MiB, the server %d MiB", heap, s.resident()>>20)
	if heap > 200 {
		t.Errorf("the page uses %.0f MiB", heap)
	}
	b.clean()
}
