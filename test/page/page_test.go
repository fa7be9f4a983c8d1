// Package page tests the page of a server in a real Chromium, as a person uses it. Pictures
// of its steps land in the directory that PICTURES names.
package page

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"execserver/client"
	"execserver/internal/testkit"
)

// The exec-server that is tested, and the exec-fleet beside it.
var program, fleetProgram string

func TestMain(m *testing.M) {
	testkit.SystemMain("chromium")
	dir, err := os.MkdirTemp("", "page")
	if err != nil {
		panic(err)
	}
	program, fleetProgram = filepath.Join(dir, "exec-server"), filepath.Join(dir, "exec-fleet")
	for path, module := range map[string]string{program: filepath.Join("..", ".."), fleetProgram: filepath.Join("..", "..", "fleet")} {
		build := exec.Command("go", "build", "-o", path, "./cmd/"+filepath.Base(path))
		build.Dir = module
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", path, err, out)
			os.Exit(1)
		}
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// server is an exec-server with a page.
type server struct {
	t       *testing.T
	url     string // ws://
	process *exec.Cmd
	dir     string // in which commands run

	tokenFile string // of who runs subcommands; "" for none
}

// serve starts a server that records.
func serve(t *testing.T, flags ...string) *server {
	t.Helper()
	return serveWith(t, append(flags, "--record", filepath.Join(t.TempDir(), "recordings"))...)
}

// serveWith starts a server with a page and these flags.
func serveWith(t *testing.T, flags ...string) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir()}
	args := append([]string{"serve", "--listen", "ws://127.0.0.1:0", "--web", "--without", "supervisor"}, flags...)
	s.process = exec.Command(program, args...)
	s.process.Dir = s.dir
	s.process.Stderr = os.Stderr
	out, err := s.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.process.Process.Signal(syscall.SIGTERM)
		_ = s.process.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	s.url = strings.TrimSpace(line)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return s
}

// do runs a subcommand of exec-server at the server, and returns what it prints.
func (s *server) do(subcommand string, args ...string) string {
	s.t.Helper()
	where := []string{subcommand, "--url", s.url}
	if s.tokenFile != "" {
		where = append(where, "--token-file", s.tokenFile)
	}
	command := exec.Command(program, append(where, args...)...)
	command.Stderr = io.Discard
	out, err := command.Output()
	if err != nil {
		s.t.Fatalf("%v: %v", command.Args, err)
	}
	return strings.TrimSpace(string(out))
}

// start starts a command that goes on, in a session of this name. A terminal has 24 rows
// and 80 columns.
func (s *server) start(name string, terminal bool, words ...string) {
	s.t.Helper()
	args := []string{"-d", "--name", name, "--workdir", s.dir}
	if terminal {
		args = append(args, "--tty")
	}
	s.do("run", append(append(args, "--"), words...)...)
}

// until waits until something at the server is so.
func (s *server) until(what string, is func() bool) {
	s.t.Helper()
	for end := time.Now().Add(testkit.Patience); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("not within %s: %s", testkit.Patience, what)
		}
	}
}

// agent is a client with a session of its own, in which it starts commands.
type agent struct {
	t   *testing.T
	env *client.Environment
}

func (s *server) agent() *agent {
	s.t.Helper()
	env, err := client.Dial(s.t.Context(), s.url, nil)
	must(s.t, err)
	s.t.Cleanup(func() { _ = env.Close() })
	return &agent{s.t, env}
}

// start starts a command of the shell that goes on after it has done something.
func (a *agent) start(command string) {
	a.t.Helper()
	must(a.t, a.env.Command(a.t.Context(), "/bin/sh", "-c", command+"; exec sleep 1000").Start())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// page returns the URL of the page.
func (s *server) page() string { return strings.Replace(s.url, "ws://", "http://", 1) + "/web/" }

// resident returns the memory of the server in bytes.
func (s *server) resident() int64 {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.process.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		s.t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

// browser is one window of Chromium.
type browser struct {
	t        *testing.T
	ctx      context.Context
	problems chan string // errors and violations that its console shows
}

// look is how the window looks.
type look struct {
	name          string
	width, height int64
	dark, phone   bool
}

var (
	light = look{"light", 1280, 860, false, false}
	dark  = look{"dark", 1280, 860, true, false}
	phone = look{"phone", 390, 844, false, true}
)

// browse opens a window.
func browse(t *testing.T) *browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1280, 860), chromedp.WSURLReadTimeout(testkit.Patience),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
	)
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, stop := chromedp.NewContext(allocator)
	t.Cleanup(stop)
	b := &browser{t: t, ctx: ctx, problems: make(chan string, 100)}
	chromedp.ListenTarget(ctx, b.listen)
	b.run(log.Enable(), runtime.Enable())
	b.as(light)
	return b
}

// listen notes what the console shows. A violation of the content security policy is one
// of its errors.
func (b *browser) listen(event any) {
	problem := ""
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError {
			problem = e.Entry.Text + " " + e.Entry.URL
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError && len(e.Args) > 0 {
			problem = string(e.Args[0].Value)
		}
	case *runtime.EventExceptionThrown:
		problem = e.ExceptionDetails.Error()
	}
	if problem != "" {
		select {
		case b.problems <- problem:
		default:
		}
	}
}

// clean fails if the console has shown an error, apart from those with one of these texts.
func (b *browser) clean(but ...string) {
	b.t.Helper()
	for {
		select {
		case problem := <-b.problems:
			expected := false
			for _, text := range but {
				expected = expected || strings.Contains(problem, text)
			}
			if !expected {
				b.t.Errorf("the console shows: %s", problem)
			}
		default:
			return
		}
	}
}

func (b *browser) run(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, testkit.Patience)
	defer cancel()
	// The first call starts the browser, which must outlive the timeout.
	if chromedp.FromContext(b.ctx).Browser == nil {
		ctx = b.ctx
	}
	if err := chromedp.Run(ctx, actions...); err != nil {
		b.t.Fatalf("%v\n%s", err, b.trouble())
	}
}

// trouble returns what the console has shown.
func (b *browser) trouble() (text string) {
	for {
		select {
		case problem := <-b.problems:
			text += problem + "\n"
		default:
			return text
		}
	}
}

// as changes how the window looks.
func (b *browser) as(l look) {
	b.t.Helper()
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	b.run(
		emulation.SetDeviceMetricsOverride(l.width, l.height, 1, l.phone),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
	)
}

// picture takes pictures of a step in all looks.
func (b *browser) picture(step string) {
	b.t.Helper()
	dir := os.Getenv("PICTURES")
	if dir == "" {
		return
	}
	for _, l := range []look{dark, phone, light} {
		b.as(l)
		var png []byte
		b.run(chromedp.Sleep(400*time.Millisecond), chromedp.ActionFunc(func(ctx context.Context) (err error) {
			png, err = page.CaptureScreenshot().Do(ctx)
			return err
		}))
		if err := os.WriteFile(filepath.Join(dir, step+"-"+l.name+".png"), png, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
}

// open opens a URL.
func (b *browser) open(url string) {
	b.t.Helper()
	b.run(chromedp.Navigate(url))
}

// value returns the value of an expression, which may be a promise.
func value[T any](b *browser, expression string) (v T) {
	b.t.Helper()
	b.run(chromedp.Evaluate(expression, &v, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	return v
}

// text returns the text that an element shows.
func (b *browser) text(selector string) string {
	b.t.Helper()
	return value[string](b, fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector))
}

// until waits until an expression is true.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	for end := time.Now().Add(testkit.Patience); ; {
		if value[bool](b, "Boolean("+expression+")") {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("not within %s: %s\n%s\nthe page shows:\n%s", testkit.Patience, what, b.trouble(), b.text("body"))
		}
		time.Sleep(20 * time.Millisecond) // the page says nothing when it changes
	}
}

// shows waits until an element shows a text.
func (b *browser) shows(selector, text string) {
	b.t.Helper()
	b.until(selector+" shows "+text, fmt.Sprintf("document.querySelector(%q)?.innerText.includes(%q)", selector, text))
}

// click clicks the first element of this kind with this text.
func (b *browser) click(selector, text string) {
	b.t.Helper()
	find := fmt.Sprintf("[...document.querySelectorAll(%q)].find((e) => e.innerText.includes(%q) && e.offsetParent)", selector, text)
	b.until("there is "+selector+" with "+text, find)
	value[bool](b, find+".click() || true")
}

// press types characters, as a keyboard does, where the focus is.
func (b *browser) press(keys string) {
	b.t.Helper()
	for _, r := range keys {
		key := string(r)
		down := input.DispatchKeyEvent(input.KeyDown).WithText(key)
		up := input.DispatchKeyEvent(input.KeyUp)
		switch r {
		case '\r':
			key, down, up = "Enter", down.WithWindowsVirtualKeyCode(13), up.WithWindowsVirtualKeyCode(13)
		case '\x1b':
			key, down, up = "Escape", down.WithText("").WithWindowsVirtualKeyCode(27), up.WithWindowsVirtualKeyCode(27)
		case '\t':
			key, down, up = "Tab", down.WithText("").WithWindowsVirtualKeyCode(9), up.WithWindowsVirtualKeyCode(9)
		}
		b.run(down.WithKey(key), up.WithKey(key))
	}
}

// pressShiftEscape presses both keys.
func (b *browser) pressShiftEscape() {
	b.t.Helper()
	down := input.DispatchKeyEvent(input.KeyDown).WithKey("Escape").WithWindowsVirtualKeyCode(27).WithModifiers(input.ModifierShift)
	up := input.DispatchKeyEvent(input.KeyUp).WithKey("Escape").WithWindowsVirtualKeyCode(27).WithModifiers(input.ModifierShift)
	b.run(down, up)
}

// screen returns the rows that the terminal of a pane shows.
func (b *browser) screen(pane string) string {
	b.t.Helper()
	return value[string](b, rowsOf(pane)+" ?? ''")
}

// rowsOf is an expression for the rows of the terminal in the pane whose command has this
// text.
func rowsOf(pane string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".pane")].find((e) => e.querySelector("h3").textContent.includes(%q))`+
		`?.querySelector(".xterm-rows")?.innerText.replaceAll("\u00a0", " ")`, pane)
}

// awaits waits until the terminal of a pane shows a text.
func (b *browser) awaits(pane, text string) {
	b.t.Helper()
	b.until("the terminal of "+pane+" shows "+text, fmt.Sprintf("%s?.includes(%q)", rowsOf(pane), text))
}

// connected waits until the page has a connection.
func (b *browser) connected() {
	b.t.Helper()
	b.until("the page is connected", `document.querySelector(".connection")?.dataset.state === "connected"`)
}

// signIn opens a new link.
func (b *browser) signIn(s *server) {
	b.t.Helper()
	b.open(s.do("web"))
	b.connected()
}

// pressKey presses a key that types nothing.
func (b *browser) pressKey(name string, code int64) {
	b.t.Helper()
	down := input.DispatchKeyEvent(input.KeyDown).WithKey(name).WithWindowsVirtualKeyCode(code)
	up := input.DispatchKeyEvent(input.KeyUp).WithKey(name).WithWindowsVirtualKeyCode(code)
	b.run(down, up)
}
