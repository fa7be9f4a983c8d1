package page

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"execserver/client"
)

// gateway is an exec-fleet gateway with a page.
type gateway struct {
	*server
	fleet   string            // for machines
	clients string            // the file of --tokens
	tokens  map[string]string // files with the token of each client
}

// serveGateway starts a gateway at which ann may use all machines, and bob box-2.
func serveGateway(t *testing.T, flags ...string) *gateway {
	t.Helper()
	g := &gateway{server: &server{t: t, dir: t.TempDir()}, tokens: make(map[string]string)}
	clients := ""
	for name, machines := range map[string]string{"ann": "", "bob": "machines = [\"box-2\"]\n"} {
		token := "the token of " + name + ", long enough"
		clients += fmt.Sprintf("[[token]]\nname = %q\nsha256 = \"%x\"\nscope = [\"full\"]\n%s", name, sha256.Sum256([]byte(token)), machines)
		g.tokens[name] = filepath.Join(t.TempDir(), "token")
		must(t, os.WriteFile(g.tokens[name], []byte(token), 0o600))
	}
	data := t.TempDir()
	g.clients = filepath.Join(t.TempDir(), "tokens")
	must(t, os.WriteFile(g.clients, []byte(clients), 0o600))
	r, w := io.Pipe()
	addresses := make(chan string, 1)
	go func() { // ends with the test program
		for lines := bufio.NewScanner(r); lines.Scan(); {
			if at, ok := strings.CutPrefix(lines.Text(), "exec-fleet on "); ok {
				addresses <- at
			} else if !strings.HasPrefix(lines.Text(), "exec-") {
				fmt.Fprintln(os.Stderr, lines.Text())
			}
		}
	}()
	g.process, g.url = g.run(w, fleetProgram, append([]string{"gateway", "--listen", "ws://127.0.0.1:0", "--web", "--data", data, "--tokens", g.clients}, flags...)...)
	g.fleet = <-addresses
	return g
}

// run starts a process that ends with the test, and returns the first line that it prints.
func (g *gateway) run(errors io.Writer, name string, args ...string) (process *exec.Cmd, line string) {
	g.t.Helper()
	process = exec.Command(name, args...)
	process.Dir, process.Stderr = g.dir, errors
	out, err := process.StdoutPipe()
	must(g.t, err)
	must(g.t, process.Start())
	g.t.Cleanup(func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait()
	})
	line, err = bufio.NewReader(out).ReadString('\n')
	must(g.t, err)
	return process, strings.TrimSpace(line)
}

// tokenOf makes the token of a machine.
func (g *gateway) tokenOf(name string) string {
	ann, err := os.ReadFile(g.tokens["ann"])
	must(g.t, err)
	r, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost, "http"+strings.TrimPrefix(g.url, "ws")+"/fleet/"+name+"/token", nil)
	must(g.t, err)
	r.Header.Set("Authorization", "Bearer "+string(ann))
	answer, err := http.DefaultClient.Do(r)
	must(g.t, err)
	defer answer.Body.Close()
	token, err := io.ReadAll(answer.Body)
	must(g.t, err)
	if answer.StatusCode != http.StatusOK {
		g.t.Fatalf("a token for %s: %d %s", name, answer.StatusCode, token)
	}
	return strings.TrimSpace(string(token))
}

// join starts a machine on a host of this name.
func (g *gateway) join(name, host string, flags ...string) *exec.Cmd {
	g.t.Helper()
	secret := filepath.Join(g.t.TempDir(), "token")
	must(g.t, os.WriteFile(secret, []byte(g.tokenOf(name)), 0o600))
	const named = `printf %s "$0" > /proc/sys/kernel/hostname && exec "$@"`
	process, _ := g.run(os.Stderr, "unshare", append([]string{
		"--map-root-user", "--uts", "sh", "-c", named, host, fleetProgram, "join",
		"--fleet", g.fleet, "--token-file", secret, "--name", name, "--without", "cgroups", "--without", "supervisor",
	}, flags...)...)
	return process
}

// link returns a new link for somebody.
func (g *gateway) link(who string, args ...string) string {
	g.t.Helper()
	command := exec.Command(fleetProgram, append([]string{"web", "--gateway", g.url, "--token-file", g.tokens[who]}, args...)...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	must(g.t, err)
	return strings.TrimSpace(string(out))
}

// client connects ann with a machine.
func (g *gateway) client(machine string) *agent {
	g.t.Helper()
	env, err := client.Dial(g.t.Context(), g.url+"/env/"+machine, &client.Options{TokenFile: g.tokens["ann"]})
	must(g.t, err)
	g.t.Cleanup(func() { _ = env.Close() })
	return &agent{g.t, env}
}

// TestFleet is what a person does who looks after several machines: see them all, filter, look
// into one, bookmark it, come back, and see one leave.
func TestFleet(t *testing.T) {
	t.Parallel()
	g := serveGateway(t)
	const markup = `<img src=x onerror=document.title='owned'>`
	g.join("box-1", markup, "--label", "zone=a", "--record", filepath.Join(t.TempDir(), "recordings"))
	second := g.join("box-2", "plain", "--label", "zone=b")
	b := browse(t)
	b.open(g.link("ann"))
	b.until("both machines are listed", `document.querySelectorAll(".machines li").length === 2`)
	b.shows(".top", "you are ann")
	b.shows(".machines li", "serving")
	b.shows(".machines li", "0 of 1,024 sessions")
	b.shows(".machines li", "zone=a")
	b.shows(".machines li", "sandbox: automatic")
	b.shows(".machines .about", markup)
	b.shows(".fleet .bar", "2 machines")
	if n := value[int](b, `document.querySelectorAll("script:not([src]), img, iframe, form[action]").length`); n != 0 {
		t.Errorf("the name of the host has made %d elements", n)
	}
	b.picture("20-fleet")

	// The keyboard alone filters by text, and goes to a machine.
	b.press("/")
	b.until("the filter has the focus", `document.activeElement.id === "filter"`)
	b.press("zone=b")
	b.shows(".fleet .bar", "1 of 2 machines")
	b.until("box-2 is left", `document.querySelectorAll(".machines li").length === 1 && document.querySelector(".machines a").textContent === "box-2"`)
	b.press("\t")
	b.until("the link has the focus", `document.activeElement.matches(".machines a")`)
	b.press("\r")
	b.shows("h1", "box-2")
	b.connected()
	b.click("a.back", "Machines")
	b.until("both machines are listed again", `document.querySelectorAll(".machines li").length === 2`)

	// A label filters, too, and stays when one comes back.
	b.click(".machines .label", "zone=a")
	b.until("box-1 is left", `document.querySelectorAll(".machines li").length === 1 && document.querySelector(".machines a").textContent === "box-1"`)
	b.picture("21-label")
	g.client("box-1").start("echo this is box one")
	b.shows(".machines li", "1 process")
	b.click(".machines a", "box-1")
	b.shows("h1", "box-1")
	b.connected()
	b.click(".process", "this is box one")
	b.awaits("box one", "this is box one")
	b.picture("22-machine")
	b.click(".pane button", "Details")
	b.shows(".details", "Directory")
	b.click(".pane button", "Files")
	b.shows(".files", "None.")
	must(t, os.WriteFile(filepath.Join(g.dir, "during"), nil, 0o644))
	b.shows(".files", "created during")
	b.click(".tabs button", "Recordings")
	b.shows(".recordings", "this is box one")
	b.click(".recordings button", "this is box one")
	b.until("the recording is shown", `document.querySelector(".player .xterm-rows")?.innerText.replaceAll("\u00a0", " ").includes("this is box one")`)
	bookmark := value[string](b, "location.href")
	b.click("a.back", "Machines")
	b.until("the label is still chosen", `document.querySelectorAll(".machines li").length === 1`)
	b.click(".bar .label", "zone=a")
	b.until("both machines are listed once more", `document.querySelectorAll(".machines li").length === 2`)
	b.open(bookmark)
	b.shows(".list", "this is box one")
	b.clean()

	// A machine that leaves is not listed, and its page says that it is not there.
	b.open(g.page() + "?machine=box-2")
	b.connected()
	must(t, second.Process.Signal(syscall.SIGTERM))
	b.shows(".connection", "not connected: there is no such machine")
	b.picture("23-gone")
	b.click("a.back", "Machines")
	b.until("one machine is listed", `document.querySelectorAll(".machines li").length === 1 && document.querySelector(".machines a").textContent === "box-1"`)
	third := g.join("box-2", "plain", "--label", "zone=c")
	b.shows(".machines", "zone=c")
	must(t, third.Process.Signal(syscall.SIGTERM))
	b.until("it disappears while one looks", `document.querySelectorAll(".machines li").length === 1`)
	b.click("button", "Sign out")
	b.shows(".sign-in", "exec-fleet web")
	b.clean("WebSocket connection to")
}

// TestFleetOfOne has a token that may use one machine: there is no other for its holder.
func TestFleetOfOne(t *testing.T) {
	t.Parallel()
	g := serveGateway(t)
	g.join("box-1", "plain")
	g.join("box-2", "plain")
	g.client("box-1").start("echo a secret")
	b := browse(t)
	b.open(g.link("bob", "box-2"))
	b.shows("h1", "box-2")
	b.connected()
	b.shows(".machine", "you are bob")
	b.click("a.back", "Machines")
	b.shows(".fleet .bar", "1 machine")
	if text := b.text("body"); strings.Contains(text, "box-1") {
		t.Errorf("the page shows %q", text)
	}
	b.picture("24-one")
	b.open(g.page() + "?machine=box-1")
	b.shows(".connection", "not connected: there is no such machine")
	b.until("there is nothing to choose from", `["#filter", ".hint.empty"].every((part) => !document.querySelector(part).checkVisibility())`)
	if text := b.text("body"); strings.Contains(text, "secret") {
		t.Errorf("the page shows %q", text)
	}
	// When the credentials end, so does the page of a machine.
	b.open(g.page() + "?machine=box-2")
	b.connected()
	b.until("there is something to choose from", `["#filter", ".hint.empty"].every((part) => document.querySelector(part).checkVisibility())`)
	must(t, os.WriteFile(g.clients, nil, 0o600))
	b.shows(".sign-in", "exec-fleet web")
	b.clean("WebSocket connection to", "401 (Unauthorized)")
}

// TestFleetWithoutGateway looks at the list when the gateway ends.
func TestFleetWithoutGateway(t *testing.T) {
	t.Parallel()
	g := serveGateway(t)
	b := browse(t)
	b.open(g.link("ann"))
	b.shows(".fleet .bar", "There is no machine that you may use.")
	must(t, g.process.Process.Signal(syscall.SIGTERM))
	b.shows(".connection", "not connected: the gateway cannot be reached")
}
