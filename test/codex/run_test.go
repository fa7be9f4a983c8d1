//go:build unix

package codex

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
)

// A run is one client with one server, in folders of their own.
type run struct {
	client client

	root string // holds all of the following
	work string // where the commands run
	home string // CODEX_HOME

	sandbox func(*run) []string // the client's arguments about it; nil: it uses none

	secure bool // by certificates and a token

	far bool // the server's work folder is another one, which others see below /proc

	id     string // stands in the environment of all that belongs to the run
	model  *responses.Server
	server *server       // nil if the client started it
	local  *program      // the client
	link   *testkit.Link // between the two, if the scenario wants one

	closed bool
}

// A program is a running child of the test.
type program struct {
	cmd            *exec.Cmd
	stdout, stderr testkit.Buffer
	done           chan struct{} // closed when it has ended
	err            error         // how, once done is closed
}

// environment variables of the commands that a run has the server run
const (
	runVariable    = "EXEC_SERVER_TEST_RUN"  // the run's id
	sideVariable   = "EXEC_SERVER_TEST_SIDE" // "server" on the server's side alone
	helperVariable = "HELPER"                // the program that is all of the helpers
)

// runsFolder is where the folders of runs are: nowhere below the folder for temporary
// files, which a client's sandbox lets a command write.
func runsFolder(t testing.TB) string {
	t.Helper()
	folder := filepath.Join(cacheFolder(t), "runs")
	for _, writable := range []string{"/tmp", os.TempDir()} {
		if strings.HasPrefix(folder, filepath.Clean(writable)+"/") {
			folder = fmt.Sprintf("/var/tmp/exec-server-runs-%d", os.Getuid())
		}
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	return folder
}

// newRun makes the folders and starts the server, if the client does not start it itself.
// Everything is gone again when t ends.
func newRun(t testing.TB, c client, s scenario) *run {
	t.Helper()
	root, err := os.MkdirTemp(runsFolder(t), c.version+"-")
	if err != nil {
		t.Fatal(err)
	}
	r := &run{
		client: c,
		root:   root,
		work:   filepath.Join(root, "work"),
		home:   filepath.Join(root, "codex"),
		id:     filepath.Base(root),
		model:  responses.Start(s.model),

		sandbox: s.sandbox,
		secure:  s.secure,
	}
	t.Cleanup(func() { r.close(t) })
	for _, folder := range []string{r.work, r.home, filepath.Join(root, "home"), filepath.Join(root, "tmp")} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}

	r.write(t, "codex/config.toml", r.model.CodexConfig())
	command, ours := serverCommand(t, c)
	if s.configure != nil {
		s.configure(t, r, command[0])
		return r
	}
	listening := func(url string) []string { return append(slices.Clone(command), "--listen", url) }
	if s.connect != nil {
		listening = s.connect(t, r, command[0])
	}
	environments := ""
	if c.stdio {
		environments = stdioEnvironment(t, listening("stdio"))
	} else {
		if more := slices.Concat(s.flags, s.doors); len(more) > 0 && !ours {
			t.Skipf("%s may not know %s", command[0], strings.Join(more, " "))
		}
		if r.secure {
			r.makeCertificates(t)
			r.writeTokens(t)
		}
		r.startServer(t, s, listening)
		if s.linked {
			r.link = testkit.NewLink(t, r.server.url)
		}
		environments = fmt.Sprintf("url = %q\n", r.url())
		if r.secure {
			environments = r.secureEnvironment(t, r.url())
		}
	}
	r.write(t, "codex/environments.toml", `default = "box"
include_local = false

[[environments]]
id = "box"
`+environments)
	return r
}

// stdioEnvironment is the part of environments.toml that has the client start a server.
func stdioEnvironment(t testing.TB, command []string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "program = %q\nargs = [", command[0])
	for _, arg := range command[1:] {
		fmt.Fprintf(&text, "%q, ", arg)
	}
	// The first start may copy the program, on a busy machine.
	text.WriteString("]\ninitialize_timeout_sec = 120\n\n[environments.env]\n")
	for _, entry := range serverEnv(t) {
		name, value, _ := strings.Cut(entry, "=")
		fmt.Fprintf(&text, "%s = %q\n", name, value)
	}
	return text.String()
}

// env is the environment of both client and server.
func (r *run) env() []string {
	return []string{
		"PATH=" + filepath.Join(r.root, "bin") + ":" + os.Getenv("PATH"),
		"LANG=C.UTF-8",
		"HOME=" + filepath.Join(r.root, "home"),
		"TMPDIR=" + filepath.Join(r.root, "tmp"),
		"CODEX_HOME=" + r.home,
		runVariable + "=" + r.id,
	}
}

// serverEnv is what the server's environment has on top of that.
func serverEnv(t testing.TB) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{sideVariable + "=server", helperVariable + "=" + self}
}

// serverLog has the client show what the server that it started writes to stderr.
const serverLog = "RUST_LOG=error,codex_exec_server::client_transport=debug"

// write makes a file with a path relative to the run's root.
func (r *run) write(t testing.TB, name, content string) {
	t.Helper()
	path := filepath.Join(r.root, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// served is the path of a file in the server's work folder.
func (r *run) served(name string) string {
	path := filepath.Join(r.work, filepath.FromSlash(name))
	if r.far {
		path = fmt.Sprintf("/proc/%d/root%s", r.server.cmd.Process.Pid, path)
	}
	return path
}

// serve makes a file in the server's work folder.
func (r *run) serve(t testing.TB, name string, content []byte) {
	t.Helper()
	path := r.served(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// url is what a client dials.
func (r *run) url() string {
	if r.link != nil {
		return r.link.Over(r.server.url)
	}
	return r.server.url
}

// startClient sends the client to work.
func (r *run) startClient(t testing.TB) {
	t.Helper()
	env := r.env()
	if r.client.stdio {
		env = append(env, serverLog)
	} else {
		// Where there is an environments.toml and the client knows it, this is not read.
		env = append(env, "CODEX_EXEC_SERVER_URL="+r.url())
	}
	if r.secure {
		env = append(env, "SSL_CERT_FILE="+filepath.Join(r.work, "ca.pem"))
	}
	command := []string{r.client.program(t), "exec", "--json", "--skip-git-repo-check"}
	if r.sandbox == nil {
		command = append(command, "--dangerously-bypass-approvals-and-sandbox")
	} else {
		command = append(command, r.sandbox(r)...)
	}
	r.local = start(t, append(command, "-C", r.work, "Do as you are told."), r.work, env)
}

// waitClient waits for the client to end and wants it to be content.
func (r *run) waitClient(t testing.TB) {
	t.Helper()
	select {
	case <-r.local.done:
	case <-time.After(time.Minute):
		t.Fatal("the client has not ended after a minute")
	}
	if r.local.err != nil {
		t.Fatalf("client: %v", r.local.err)
	}
}

// close ends what still runs, once. A server that was asked to end must leave nothing behind.
func (r *run) close(t testing.TB) {
	if r.closed {
		return
	}
	r.closed = true
	if r.local != nil {
		r.local.stop(syscall.SIGKILL)
	}
	if r.server != nil && !r.server.end() {
		t.Error("the server did not end on SIGTERM")
	}
	if _, ours := serverCommand(t, r.client); ours {
		waitFor(t, testkit.Patience, func() error { return noneOf(r.processes(t)) })
	}
	for _, p := range r.processes(t) {
		t.Logf("ending %s", p)
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
	r.model.Close()
	if t.Failed() {
		r.report(t)
	}
	if err := os.RemoveAll(r.root); err != nil {
		t.Error(err)
	}
}

// report logs what a reader of a failed test wants to see.
func (r *run) report(t testing.TB) {
	programs := map[string]*program{"client": r.local}
	if r.server != nil {
		programs["server"] = r.server.program
		if r.server.gateway != nil {
			programs["gateway"] = r.server.gateway.program
		}
	}
	for name, p := range programs {
		if p != nil {
			t.Logf("%s's stdout:\n%s", name, p.stdout.Tail(8<<10))
			t.Logf("%s's stderr:\n%s", name, p.stderr.Tail(8<<10))
		}
	}
	t.Log("requests to the model:", len(r.model.Requests()))
	if other := r.model.Other(); len(other) > 0 {
		t.Log("other requests:", other)
	}
}

func start(t testing.TB, command []string, folder string, env []string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(command[0], command[1:]...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env = folder, env
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.WaitDelay = 5 * time.Second // a child of its may hold the streams
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the program, which stop sees to
		defer close(p.done)
		p.err = p.cmd.Wait()
		if errors.Is(p.err, exec.ErrWaitDelay) {
			p.err = nil
		}
	}()
	return p
}

// stop sends a signal and, if that does not help, kills the program. It reports whether
// the signal was enough.
func (p *program) stop(signal syscall.Signal) bool {
	_ = p.cmd.Process.Signal(signal)
	select {
	case <-p.done:
		return true
	case <-time.After(testkit.Patience):
		_ = p.cmd.Process.Kill()
		<-p.done
		return false
	}
}

// waitFor waits until condition gives no error any more.
func waitFor(t testing.TB, limit time.Duration, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("after %v: %v", limit, err)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}
