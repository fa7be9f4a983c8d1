package connect

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
)

// said collects what a program writes to standard error.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// open connects to a server.
func open(t *testing.T, connect *exec.Cmd) (*client.Environment, *said) {
	t.Helper()
	stderr := new(said)
	connect.Stderr = stderr
	env, err := client.Launch(t.Context(), connect, &client.Options{InitializeTimeout: testkit.Patience})
	if err != nil {
		t.Fatalf("%v; connect said %q", err, stderr)
	}
	t.Cleanup(func() { _ = env.Close() })
	return env, stderr
}

// serverOf returns the process that serves, which is the parent of its commands.
func serverOf(t *testing.T, env *client.Environment) string {
	t.Helper()
	out, err := env.Command(t.Context(), "/bin/sh", "-c", "echo $PPID").Output()
	must(t, err)
	return string(out)
}

// ssh returns the only child of a connect.
func ssh(t *testing.T, connect *exec.Cmd) (pid int) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		children := testkit.Children(connect.Process.Pid)
		if len(children) != 1 {
			return fmt.Errorf("connect has the children %v, want an ssh", children)
		}
		pid = children[0]
		return nil
	})
	return pid
}

// TestLostLinks kills ssh again and again under a command that prints lines.
func TestLostLinks(t *testing.T) {
	b := newBox(t)
	connect := b.lasting(t, "plain")
	env, stderr := open(t, connect)
	const lines, kills = 600, 3
	command := env.Command(t.Context(), "/bin/sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo $i; i=$((i+1)); sleep 0.01; done; exit 7", lines))
	stdout, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	scanner, killed := bufio.NewScanner(stdout), 0
	for i := range lines {
		if !scanner.Scan() || scanner.Text() != fmt.Sprint(i) {
			t.Fatalf("line %d is %q, %v; connect said %q", i, scanner.Text(), scanner.Err(), stderr)
		}
		if i%100 == 50 && killed < kills {
			must(t, syscall.Kill(ssh(t, connect), syscall.SIGKILL))
			killed++
		}
	}
	if scanner.Scan() {
		t.Errorf("after the last line came %q", scanner.Text())
	}
	var ended *client.ExitError
	if err := command.Wait(); !errors.As(err, &ended) || ended.ExitCode != 7 {
		t.Errorf("the command ended with %v", err)
	}
	must(t, env.Close())
	testkit.Within(t, "the end of connect", func() { <-env.Done() })
	for _, text := range []string{"is lost", "is back after"} {
		if n := strings.Count(stderr.String(), text); n == 0 || n > kills {
			t.Errorf("connect said %d times that the link %s: %q", n, text, stderr)
		}
	}
}

// TestOneServer has several clients connect at once. One server serves them all.
func TestOneServer(t *testing.T) {
	b := newBox(t)
	hello(t, b.connect(t, "plain")) // uploads the program
	servers := make(chan string, 3)
	for range cap(servers) {
		connect := b.lasting(t, "plain")
		go func() {
			env, err := client.Launch(context.Background(), connect, &client.Options{InitializeTimeout: testkit.Patience})
			if err != nil {
				servers <- err.Error()
				return
			}
			defer env.Close()
			out, err := env.Command(context.Background(), "/bin/sh", "-c", "echo $PPID").Output()
			if err != nil {
				out = []byte(err.Error())
			}
			servers <- string(out)
		}()
	}
	first := <-servers
	for range cap(servers) - 1 {
		if next := <-servers; next != first {
			t.Errorf("the servers are %q and %q", first, next)
		}
	}
	// Other flags mean another server.
	env, _ := open(t, b.lasting(t, "plain", "--serve-flag=--max-sessions=7"))
	if other := serverOf(t, env); other == first {
		t.Error("a server has the flags of another one")
	}
}

// TestEndOfConnect ends connect in different ways. The server stays, and what the client left running
// in a session that it wanted to keep.
func TestEndOfConnect(t *testing.T) {
	b := newBox(t)
	env, _ := open(t, b.lasting(t, "plain"))
	server := serverOf(t, env)
	for _, signal := range []syscall.Signal{0, syscall.SIGTERM, syscall.SIGKILL} {
		connect := b.lasting(t, "plain")
		env, _ := launch(t, connect)
		child := ssh(t, connect)
		if signal == 0 {
			must(t, env.Close())
		} else {
			must(t, connect.Process.Signal(signal))
		}
		testkit.Within(t, "the end of the connection", func() { <-env.Done() })
		testkit.Gone(t, child)
	}
	if now := serverOf(t, env); now != server {
		t.Errorf("the server was %q and is %q", server, now)
	}
}

// TestEndOfServer kills the server. connect says so, and another one starts a new server.
func TestEndOfServer(t *testing.T) {
	b := newBox(t)
	hello(t, b.connect(t, "plain"))
	connect := b.lasting(t, "plain")
	stdin, err := connect.StdinPipe() // stays open
	must(t, err)
	defer stdin.Close()
	stdout, err := connect.StdoutPipe()
	must(t, err)
	var stderr said
	connect.Stderr = &stderr
	must(t, connect.Start())
	_, err = io.WriteString(stdin, `{"id":1,"method":"initialize","params":{"clientName":"test"}}`+"\n")
	must(t, err)
	_, err = bufio.NewReader(stdout).ReadBytes('\n')
	must(t, err)
	for pid, words := range b.running("plain") {
		if strings.Contains(words, "--run-directory") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	testkit.Within(t, "the end of connect", func() { _ = connect.Wait() })
	if code := connect.ProcessState.ExitCode(); code != 1 || strings.Count(stderr.String(), "the server on the other machine has ended") != 1 {
		t.Errorf("connect ended with %d and said %q", code, stderr.String())
	}
	hello(t, b.lasting(t, "plain"))
}

// TestUnsafeFiles has files of a server that another user could change.
func TestUnsafeFiles(t *testing.T) {
	b := newBox(t)
	hello(t, b.connect(t, "plain"))
	run := filepath.Join(b.cache("plain"), "run")
	must(t, os.Mkdir(run, 0o755))
	fails(t, b.lasting(t, "plain"), 1, run, "it belongs to the user 0")
	must(t, os.Chown(run, b.accounts["plain"].uid, -1))
	must(t, os.Chmod(run, 0o777))
	fails(t, b.lasting(t, "plain"), 1, run, "other users can write in it")
	must(t, os.Remove(run))
	must(t, os.Symlink(b.accounts["plain"].home, run))
	fails(t, b.lasting(t, "plain"), 1, run, "it is a symbolic link")
	must(t, os.Remove(run))
	hello(t, b.lasting(t, "plain"))
}

// TestServerThatDoesNotStart gives a flag that no server accepts.
func TestServerThatDoesNotStart(t *testing.T) {
	b := newBox(t)
	hello(t, b.connect(t, "plain"))
	fails(t, b.lasting(t, "plain", "--serve-flag=--max-sessions=0"), 1, "the server ended when it was started", "max-sessions")
	for _, flag := range []string{"--listen=stdio", "--run-directory=/tmp", "--idle-exit=1s"} {
		connect := local(t, "connect", "--serve-flag="+flag, "ssh", "box")
		if out, err := connect.CombinedOutput(); connect.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "connect sets this flag") {
			t.Errorf("%s: %v, %s", flag, err, out)
		}
	}
}

// TestNewerProgram connects by another program than the one of the running server.
func TestNewerProgram(t *testing.T) {
	b := newBox(t)
	env, _ := open(t, b.lasting(t, "plain"))
	server := serverOf(t, env)
	newer := filepath.Join(t.TempDir(), "exec-server")
	copyInto(t, program, newer)
	file, err := os.OpenFile(newer, os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = file.WriteString("newer")
	must(t, err)
	must(t, file.Close())
	by := func(flags ...string) *exec.Cmd {
		connect := b.lasting(t, "plain", flags...)
		connect.Path, connect.Args[0] = newer, newer
		return connect
	}
	second, stderr := open(t, by())
	if now := serverOf(t, second); now != server || strings.Count(stderr.String(), "connect --upgrade replaces it") != 1 {
		t.Errorf("the server was %q and is %q; connect said %q", server, now, stderr)
	}
	third, stderr := open(t, by("--upgrade"))
	if now := serverOf(t, third); now == server || strings.Contains(stderr.String(), "--upgrade") {
		t.Errorf("the server was %q and is %q; connect said %q", server, now, stderr)
	}
	testkit.Within(t, "the end of the old connections", func() { <-env.Done(); <-second.Done() })
	hello(t, by("--upgrade")) // has nothing to do
	if now := serverOf(t, third); now == server {
		t.Errorf("the server is %q again", now)
	}
}

// TestOn uses a server by the commands of the program, each with a connection of its own.
func TestOn(t *testing.T) {
	b := newBox(t)
	connect := b.lasting(t, "plain")
	codex := t.TempDir()
	var args []string
	for _, arg := range connect.Args[1:] {
		args = append(args, fmt.Sprintf("%q", arg))
	}
	config := fmt.Sprintf("include_local = false\ndefault = \"box\"\n[[environments]]\nid = \"box\"\nprogram = %q\nargs = [%s]\ninitialize_timeout_sec = %d\n",
		program, strings.Join(args, ", "), int(testkit.Patience.Seconds()))
	must(t, os.WriteFile(filepath.Join(codex, "environments.toml"), []byte(config), 0o600))
	on := func(words ...string) string {
		t.Helper()
		command := local(t, append([]string{words[0], "--on", "box"}, words[1:]...)...)
		command.Env = append(command.Env, "CODEX_HOME="+codex)
		out, err := command.CombinedOutput()
		if err != nil && command.ProcessState.ExitCode() != 7 {
			t.Fatalf("%q: %v: %s", words, err, out)
		}
		return string(out)
	}
	on("run", "-d", "--name", "build", "--", "sh", "-c", "echo begun; until [ -e go ]; do sleep 0.1; done; echo went; exit 7")
	if out := on("ps"); !strings.Contains(out, "build") || !strings.Contains(out, "running") {
		t.Errorf("ps printed %q", out)
	}
	if out := on("logs", "build"); !strings.Contains(out, "begun") {
		t.Errorf("logs printed %q", out)
	}
	must(t, os.WriteFile(filepath.Join(b.accounts["plain"].home, "go"), nil, 0o644))
	if out := on("attach", "build"); !strings.Contains(out, "went") {
		t.Errorf("attach printed %q", out)
	}
	on("run", "-d", "--name", "sleep", "--", "sleep", "600")
	on("kill", "sleep")
	if out := on("ps"); strings.Contains(out, "sleep") {
		t.Errorf("after kill, ps printed %q", out)
	}
	must(t, os.WriteFile(filepath.Join(codex, "file"), []byte("content"), 0o644))
	on("cp", filepath.Join(codex, "file"), ":copied")
	if text, err := os.ReadFile(filepath.Join(b.accounts["plain"].home, "copied")); err != nil || string(text) != "content" {
		t.Errorf("cp wrote %q, %v", text, err)
	}
}

// TestSilentLink stops ssh, which answers nothing then, like a network that has gone away.
func TestSilentLink(t *testing.T) {
	b := newBox(t)
	connect := b.lasting(t, "plain")
	env, stderr := open(t, connect)
	server := serverOf(t, env)
	must(t, syscall.Kill(ssh(t, connect), syscall.SIGSTOP))
	if now := serverOf(t, env); now != server {
		t.Errorf("the server was %q and is %q", server, now)
	}
	if !strings.Contains(stderr.String(), "the link is silent") {
		t.Errorf("connect said %q", stderr)
	}
}

// TestListenLasting serves clients that can only dial by one server.
func TestListenLasting(t *testing.T) {
	b := newBox(t)
	connect := b.lasting(t, "plain", "--listen", "ws://127.0.0.1:0")
	stdout, err := connect.StdoutPipe()
	must(t, err)
	must(t, connect.Start())
	defer func() {
		_ = connect.Process.Kill()
		_ = connect.Wait()
	}()
	url, err := bufio.NewReader(stdout).ReadString('\n')
	must(t, err)
	var servers []string
	for range 2 {
		env, err := client.Dial(t.Context(), strings.TrimSpace(url), &client.Options{ConnectTimeout: testkit.Patience, InitializeTimeout: testkit.Patience})
		must(t, err)
		defer env.Close()
		servers = append(servers, serverOf(t, env))
		passBytes(t, env)
	}
	if servers[0] != servers[1] {
		t.Errorf("the servers are %q", servers)
	}
}
