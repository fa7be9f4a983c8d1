package page

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/nats-io/nats.go"

	"execserver/fleet/internal/fleet"
	"execserver/fleet/natstransport"
)

// call is a request of the page to a machine.
type call struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		ProcessID string `json:"processId"`
	} `json:"params"`
}

// liar joins a machine that answers what the test wants: respond returns messages.
func (g *gateway) liar(m fleet.Member, respond func(call) []string) {
	g.t.Helper()
	nc, err := nats.Connect(g.fleet, nats.UserInfo(m.Name, g.tokenOf(m.Name)), nats.CustomInboxPrefix(fleet.InboxPrefix(m.Name)))
	must(g.t, err)
	g.t.Cleanup(nc.Close)
	joined, err := fleet.Join(g.t.Context(), nc, m, fleet.JoinOptions{
		Load:  func() fleet.Load { return fleet.Load{Capacity: 10} },
		Drain: func() {},
		Serve: func(conn *natstransport.Conn) {
			for {
				text, err := conn.Read(nil)
				if err != nil {
					return
				}
				var asked call
				if err := json.Unmarshal(text, &asked); err != nil || asked.ID == nil {
					continue
				}
				for _, answer := range respond(asked) {
					if conn.Write([]byte(answer)) != nil {
						return
					}
				}
			}
		},
	})
	must(g.t, err)
	g.t.Cleanup(joined.Close)
}

// result is an answer to a call.
func (c call) result(value any) []string {
	text, err := json.Marshal(map[string]any{"id": c.ID, "result": value})
	if err != nil {
		panic(err)
	}
	return []string{string(text)}
}

type object = map[string]any

// greeted answers initialize, and leaves all else to respond.
func greeted(respond func(call) []string) func(call) []string {
	return func(c call) []string {
		if c.Method != "initialize" {
			return respond(c)
		}
		able := object{"processUsage": true, "processScreen": true, "recordings": true, "sessionList": true, "sessionRead": true}
		return c.result(object{"sessionId": "", "environmentInfo": object{"executorVersion": "1.0.0", "platformOs": "linux", "capabilities": able}})
	}
}

// listing answers with one session that has these processes.
func listing(processes []object, respond func(call) []string) func(call) []string {
	return greeted(func(c call) []string {
		switch c.Method {
		case "session/list":
			return c.result(object{"sessions": []object{{"sessionId": "s", "clientName": "a client", "own": true, "state": "attached"}}})
		case "process/list":
			return c.result(object{"processes": processes})
		case "process/usage":
			return c.result(object{"processes": []object{}})
		}
		return respond(c)
	})
}

func sleeper(i int) object {
	return object{"sessionId": "s", "processId": fmt.Sprint("p-", i), "argv": []string{"sleep", fmt.Sprint(i)}, "cwd": "file:///tmp", "tty": false, "startedAtMs": 1, "state": "running", "exitCode": nil}
}

// tab opens another tab of the same browser.
func (b *browser) tab() *browser {
	b.t.Helper()
	ctx, stop := chromedp.NewContext(b.ctx)
	b.t.Cleanup(stop)
	other := &browser{t: b.t, ctx: ctx, problems: make(chan string, 100)}
	chromedp.ListenTarget(ctx, other.listen)
	must(b.t, chromedp.Run(ctx, log.Enable(), runtime.Enable())) // makes the tab, which must outlive a timeout
	other.as(light)
	return other
}

// front brings a tab to the front: one that is hidden asks for nothing.
func (b *browser) front() { b.run(page.BringToFront()) }

// TestFleetOfLiars looks at machines that answer nothing, what is no message, what has other
// kinds, too much, or without end. The page says so, and other machines are there as ever.
func TestFleetOfLiars(t *testing.T) {
	t.Parallel()
	g := serveGateway(t)
	nothing := func(call) []string { return nil }
	g.liar(fleet.Member{Name: "silent"}, nothing)
	g.liar(fleet.Member{Name: "mute"}, greeted(nothing))
	for name, text := range map[string]string{"babble": "hello?", "null": "null", "number": "7"} {
		g.liar(fleet.Member{Name: name}, greeted(func(call) []string { return []string{text} }))
	}
	g.liar(fleet.Member{Name: "wrong"}, greeted(func(c call) []string {
		return c.result(object{"sessions": object{"length": 1e9, "map": 1}, "processes": []any{nil, 1, object{"argv": "sleep"}}})
	}))
	g.liar(fleet.Member{Name: "refusing"}, greeted(func(c call) []string {
		return []string{fmt.Sprintf(`{"id":%s,"error":{"message":{"toString":1}}}`, c.ID)}
	}))
	many := make([]object, 0, 200_000)
	for i := range 200_000 {
		many = append(many, sleeper(i))
	}
	g.liar(fleet.Member{Name: "many"}, listing(many, nothing))
	flood := strings.Repeat(" ", 60_000)
	g.liar(fleet.Member{Name: "flood"}, listing([]object{sleeper(1)}, func(c call) (all []string) {
		for i := range 2000 {
			all = append(all, fmt.Sprintf(`{"method":"nobody/asked","params":{"n":%d}}%s`, i, flood))
		}
		return append(all, c.result(object{"nextSeq": 1})...)
	}))
	var reads atomic.Int64
	g.liar(fleet.Member{Name: "eager"}, listing([]object{sleeper(1)}, func(c call) []string {
		switch c.Method {
		case "process/snapshot":
			return c.result(object{"nextSeq": 1, "stdout": object{"head": "aGVsbG8K", "tail": "", "omittedBytes": 0, "totalBytes": 6}})
		case "process/read":
			reads.Add(1)
			return c.result(object{"chunks": []any{}, "nextSeq": 1, "closed": false})
		}
		return nil
	}))
	g.join("honest", "plain")
	g.client("honest").start("echo this is honest")

	b := browse(t)
	b.open(g.link("ann"))
	b.shows(".fleet .bar", "11 machines")
	at := func(b *browser, name string) {
		t.Helper()
		b.open(g.page() + "?machine=" + name)
	}
	silent, mute := b.tab(), b.tab()
	at(silent, "silent")
	at(mute, "mute")
	silent.shows(".connection", "connecting")
	mute.shows(".connection", "waiting for the machine")
	mute.picture("28-late")
	b.front()
	honest := func() {
		t.Helper()
		at(b, "honest")
		b.connected()
		b.shows(".list", "this is honest")
	}
	honest()
	for _, name := range []string{"babble", "null", "number"} {
		at(b, name)
		b.shows(".connection", "not connected: the machine sends what is no message of the protocol")
		b.clean()
	}
	at(b, "wrong")
	b.shows(".announced", "the machine answers")
	b.shows(".announced", "with something else")
	b.clean("with something else")
	at(b, "refusing")
	b.shows(".announced", "the machine refuses")
	b.clean("with something else") // what came while the page before went

	at(b, "many")
	b.shows(".list", "Only 1,000 are shown. Filter to see others.")
	if n := value[int](b, `document.querySelectorAll("*").length`); n > 20_000 {
		t.Errorf("the page has %d elements", n)
	}
	value[bool](b, `(document.querySelector("#filter").focus(), true)`)
	b.press("p-199999")
	b.until("the last one is found", `document.querySelectorAll("button.process").length === 1`)
	b.clean()

	at(b, "flood")
	b.click(".process", "sleep 1")
	b.until("its pane is open", `document.querySelector(".pane")`)
	b.click(".pane button", "Details")
	b.shows(".details", "Directory")
	b.clean("with something else")

	at(b, "eager")
	b.click(".process", "sleep 1")
	b.awaits("sleep 1", "hello")
	from, since := reads.Load(), time.Now()
	b.until("it was read more", fmt.Sprintf(`performance.now() > %f`, value[float64](b, "performance.now()")+2000))
	if rate := float64(reads.Load()-from) / time.Since(since).Seconds(); rate > 20 {
		t.Errorf("the page asks %.0f times a second", rate)
	}
	b.clean()
	honest()

	// Those that never answered are given up, and tried again.
	for _, one := range []*browser{silent, mute} {
		one.front()
		one.shows(".connection", "not connected: the machine does not answer")
		one.clean()
	}
	mute.picture("29-silent")
}

// long returns hostile text: markup, text from right to left, characters that do not show or
// turn the text around, and letters with a hundred accents, over and over.
func long(what string, n int) string {
	return what + ` </h2><img src=x onerror="document.title='owned'"><script>document.title='owned'</script> ` +
		"שלום עולם 123 \u202egnp.exe\u2066 a\u200bb\u00adc\u034fd\ufe0f\U000e0041 " + strings.Repeat("Z"+strings.Repeat("\u0301\u0489", 50), 20) + strings.Repeat("W", n)
}

// TestFleetOfHostileNames shows a machine whose every text is hostile, in the list and on its
// own page.
func TestFleetOfHostileNames(t *testing.T) {
	t.Parallel()
	g := serveGateway(t)
	labels := make(map[string]string)
	for i := range 64 {
		labels[fmt.Sprintf("label-%02d-%s", i, strings.Repeat("k", 50))] = `<b onclick="x">` + strings.Repeat("ש", 10) + strings.Repeat("Z\u0301\u0301\u0301", 15)
	}
	accents := strings.Repeat("e"+strings.Repeat("\u0301", 20), 6)
	m := fleet.Member{
		Name: strings.Repeat("W", 64), Labels: labels, Host: strings.Repeat("שלום", 30), Version: accents, System: `<img src=x onerror=document.title='owned'>`,
		Sandbox: strings.Repeat("M", 256),
	}
	var processes []object
	for i, endedBy := range []string{"constructor", "__proto__", "toString", "client"} {
		p := sleeper(i)
		p["processId"], p["argv"], p["cwd"] = long(fmt.Sprint("id-", i), 100), []string{long(fmt.Sprint("command-", i), 100_000)}, "file:///%D7%A9%E2%80%AE/"+strings.Repeat("d", 5000)
		p["tty"], p["exitCode"], p["state"], p["signal"], p["endedBy"] = i%2 == 0, i, "closed", long("SIGNAL", 3000), endedBy
		processes = append(processes, p)
	}
	processes[0]["exitCode"], processes[0]["state"] = nil, "running"
	drawing := base64.StdEncoding.EncodeToString([]byte(nasty))
	stream := object{"head": drawing, "tail": "", "omittedBytes": 0, "totalBytes": 1}
	cast := `{"version":2,"width":1e9,"height":-1,"title":"</title>"}` + "\n" + `[1e999,"o","x"]` + "\n"
	g.liar(m, func(c call) []string {
		switch c.Method {
		case "initialize":
			able := object{"processUsage": true, "processScreen": true, "recordings": true, "fsWatch": true, "fsMetadata": true}
			return c.result(object{"sessionId": "", "environmentInfo": object{"executorVersion": long("", 10_000), "platformOs": long("os", 10_000), "capabilities": able}})
		case "session/list":
			return c.result(object{"sessions": []object{
				{"sessionId": "s", "name": long("session", 50_000), "clientName": long("client", 50_000), "principal": long("ann", 10_000), "own": true, "state": long("state", 10)},
				{"sessionId": "__proto__", "clientName": "constructor", "own": false, "principal": "אבג", "state": "attached", "observers": 3},
			}})
		case "process/list":
			return c.result(object{"processes": processes})
		case "process/screen":
			return c.result(object{"size": object{"rows": 1e9, "cols": 1e9}, "drawing": drawing, "nextSeq": 1, "omittedBytes": 0})
		case "process/snapshot":
			return c.result(object{"nextSeq": 1, "stdout": stream, "stderr": stream})
		case "process/read":
			return c.result(object{"chunks": []any{}, "nextSeq": 1, "closed": true, "failure": long("failure", 50_000)})
		case "recording/list":
			return c.result(object{"recordings": []object{{"recordingId": long("recording", 10), "argv": []string{long("recorded", 50_000)}, "cwd": long("/", 50_000), "startedAtMs": 1e300, "sizeBytes": -1}}, "next": "more"})
		case "recording/read":
			return c.result(object{"chunk": base64.StdEncoding.EncodeToString([]byte(cast)), "eof": true})
		}
		text, _ := json.Marshal(long("refused", 50_000))
		return []string{fmt.Sprintf(`{"id":%s,"error":{"message":%s}}`, c.ID, text)}
	})
	g.join("box", "plain", "--label", "zone=a")
	b := browse(t)
	harmless := func(step string) {
		t.Helper()
		if title := value[string](b, "document.title"); strings.Contains(title, "owned") || !strings.HasSuffix(title, "exec-server") {
			t.Errorf("%s: the title is %q", step, title)
		}
		if n := value[int](b, `document.querySelectorAll("script:not([src]), img, iframe, object, embed, form[action], b").length`); n != 0 {
			t.Errorf("%s: the page has %d elements that it does not make", step, n)
		}
		if bad := value[[]string](b, `(() => {
			const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), bad = [];
			while (walk.nextNode()) if (!walk.currentNode.parentElement.closest(".xterm") && /\p{M}{6}|[\u202a-\u202e\u200b\u00ad\u034f\ufe0f]/u.test(walk.currentNode.data)) bad.push(walk.currentNode.parentElement.outerHTML.slice(0, 200));
			return bad; })()`); len(bad) > 0 {
			t.Errorf("%s: characters that do not show, or are drawn over others, are in %q", step, bad[0])
		}
		for _, l := range []look{phone, light} {
			b.as(l)
			b.until(step+": nothing is wider than the window", `document.documentElement.scrollWidth <= innerWidth && document.body.scrollWidth <= innerWidth`)
			if high := value[[]string](b, `[...document.querySelectorAll(".machines li, .groups h2, .groups .hint, .process, .top, .note, .announced, h3, td")]
				.filter((e) => e.offsetHeight > (e.matches(".machines li") ? innerHeight : 300)).map((e) => e.offsetHeight + " " + e.outerHTML.slice(0, 100))`); len(high) > 0 {
				t.Errorf("%s, %s: this is too high: %q", step, l.name, high)
			}
		}
		b.clean()
	}
	b.open(g.link("ann"))
	b.shows(".fleet .bar", "2 machines")
	b.shows(".machines", "and 44 more")
	harmless("the list")
	b.picture("30-hostile-fleet")
	b.click(".machines .label", "and 44 more")
	b.until("all labels are shown", `document.activeElement.textContent.includes("label-20-") && document.querySelectorAll(".machines li .label").length === 65`)
	b.click(".machines a", "WWW")
	b.connected()
	b.shows(".list", "command-0")
	b.shows(".list", "constructor")
	harmless("the page of the machine")
	b.picture("31-hostile-machine")
	b.click(".process", "command-0")
	b.click(".process", "command-1")
	b.awaits("command-0", "the end of it")
	b.awaits("command-1", "the end of it")
	b.until("the terminal is not larger than a screen may be", `[...document.querySelectorAll(".xterm-rows")].every((rows) => rows.children.length <= 500)`)
	b.shows(".pane .note", "failure")
	b.click(".pane button", "Details")
	b.shows(".details", "Directory")
	b.click(".pane button", "Files")
	b.shows(".files", "refused")
	harmless("panes")
	b.picture("32-hostile-panes")
	b.click(".pane button", "Take over")
	b.shows("dialog", "Take over?")
	harmless("the dialog")
	b.click("dialog .yes", "Take over")
	b.shows(".pane .note", "refused")
	harmless("what the machine says when it refuses")
	b.click(".tabs button", "Recordings")
	b.shows(".recordings", "recorded")
	harmless("recordings")
	b.click(".recordings button.command", "recorded")
	b.until("the player is shown", `document.querySelector(".player .xterm-rows")`)
	harmless("the player")
	b.picture("33-hostile-recordings")
	b.open(g.page() + "?machine=box")
	b.connected()
}
