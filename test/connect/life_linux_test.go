package connect

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
)

// launch connects to an account and starts a command there that runs for ever.
func launch(t *testing.T, connect *exec.Cmd) (*client.Environment, *client.Cmd) {
	t.Helper()
	connect.Stderr = io.Discard
	env, err := client.Launch(t.Context(), connect, &client.Options{InitializeTimeout: testkit.Patience})
	must(t, err)
	t.Cleanup(func() { _ = env.Close() })
	command := env.Command(t.Context(), "/bin/sh", "-c", "echo begun; sleep 600")
	stdout, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "begun\n" {
		t.Fatalf("the command printed %q: %v", line, err)
	}
	return env, command
}

// TestKilledConnect leaves nothing behind, here or there.
func TestKilledConnect(t *testing.T) {
	b := newBox(t)
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			connect := b.connect(t, "plain")
			env, _ := launch(t, connect)
			children := testkit.Children(connect.Process.Pid)
			if len(children) != 1 {
				t.Fatalf("connect has the children %v, want an ssh", children)
			}
			must(t, connect.Process.Signal(signal))
			testkit.Within(t, "the end of the connection", func() { <-env.Done() })
			testkit.Gone(t, children...)
			b.vanished(t, "plain")
		})
	}
}

// TestKilledServer ends the connection.
func TestKilledServer(t *testing.T) {
	b := newBox(t)
	connect := b.connect(t, "plain")
	env, _ := launch(t, connect)
	kill := b.sshd.As("plain").Command(b.sshd.Port(), "kill -9 -1")
	_ = kill.Run() // it kills itself, too
	testkit.Within(t, "the end of the connection", func() { <-env.Done() })
	b.vanished(t, "plain")
}

// TestBytes passes much in both directions.
func TestBytes(t *testing.T) {
	b := newBox(t)
	connect := b.connect(t, "plain")
	connect.Stderr = io.Discard
	env, err := client.Launch(t.Context(), connect, &client.Options{InitializeTimeout: testkit.Patience})
	must(t, err)
	defer env.Close()
	passBytes(t, env)
}

func passBytes(t *testing.T, env *client.Environment) {
	t.Helper()
	in := bytes.Repeat([]byte("\x00\xffeverything\r\n\x1b[0m"), 200_000)
	cat := env.Command(t.Context(), "cat")
	cat.Stdin = bytes.NewReader(in)
	out, err := cat.Output()
	if err != nil || sha256.Sum256(out) != sha256.Sum256(in) {
		t.Errorf("of %d bytes, %d came back: %v", len(in), len(out), err)
	}
}

// TestListen serves clients that can only dial, each with a server of its own.
func TestListen(t *testing.T) {
	b := newBox(t)
	for _, listen := range []string{"ws://127.0.0.1:0", "unix://" + filepath.Join(site, "keys", "socket")} {
		t.Run(listen[:2], func(t *testing.T) {
			connect := b.connect(t, "plain", "--listen", listen)
			stdout, err := connect.StdoutPipe()
			must(t, err)
			must(t, connect.Start())
			defer func() {
				_ = connect.Process.Kill()
				_ = connect.Wait()
			}()
			url, err := bufio.NewReader(stdout).ReadString('\n')
			must(t, err)
			url = strings.TrimSpace(url)
			for range 2 {
				env, err := client.Dial(t.Context(), url, &client.Options{ConnectTimeout: testkit.Patience, InitializeTimeout: testkit.Patience})
				must(t, err)
				out, err := env.Command(t.Context(), "id", "-un").Output()
				if err != nil || string(out) != "plain\n" {
					t.Errorf("id printed %q: %v", out, err)
				}
				passBytes(t, env)
				must(t, env.Close())
				b.vanished(t, "plain")
			}
			if strings.HasPrefix(url, "ws") {
				refusesOthers(t, b, url)
			}
			env, err := client.Dial(t.Context(), url, &client.Options{ConnectTimeout: testkit.Patience, InitializeTimeout: testkit.Patience, RecoveryTimeout: 1})
			must(t, err)
			defer env.Close()
			must(t, connect.Process.Signal(syscall.SIGTERM))
			testkit.Within(t, "the end of connect", func() { _ = connect.Wait() })
			if code := connect.ProcessState.ExitCode(); code != 128+int(syscall.SIGTERM) {
				t.Errorf("connect ended with %d", code)
			}
			b.vanished(t, "plain")
		})
	}
	fails(t, b.connect(t, "plain", "--listen", "ws://0.0.0.0:0"), 1, "connect serves only this machine")
}

// refusesOthers has another user of this machine try to connect.
func refusesOthers(t *testing.T, b *box, url string) {
	t.Helper()
	copied := filepath.Join(site, "keys", "exec-server")
	copyInto(t, program, copied)
	ctx, stop := context.WithTimeout(t.Context(), testkit.Patience)
	defer stop()
	other := exec.CommandContext(ctx, copied, "run", "--url", url, "--", "id")
	uid := uint32(b.accounts["fish"].uid)
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	other.Dir, other.Env = "/", []string{"HOME=/"}
	if out, err := other.CombinedOutput(); err == nil || !strings.Contains(string(out), "403") {
		t.Errorf("another user's command printed %q: %v", out, err)
	}
}
