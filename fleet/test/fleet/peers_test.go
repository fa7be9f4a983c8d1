//go:build linux

package fleet

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// TestConfinedThroughGateway has a command that a machine confines ask the gateway of the same
// user for one that nothing confines.
func TestConfinedThroughGateway(t *testing.T) {
	n := gateway(t)
	join(t, []*node{n}, "box-0")
	listed(t, n, 1)
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	server, at, dir := filepath.Join(filepath.Dir(path), "exec-server"), "ws://"+n.client+"/env/box-0", t.TempDir()
	run := func(args ...string) string {
		cmd := exec.Command(server, append([]string{"run", "--url", at}, args...)...)
		cmd.Dir = dir
		text, _ := cmd.CombinedOutput() // its exit code is that of the command
		return string(text)
	}
	escaped := filepath.Join(dir, "escaped")
	got := run("--sandbox", "read-only", "--network", "-w", dir, "--", server, "run", "--url", at, "--", "touch", escaped)
	if strings.Contains(got, "cannot be enforced") {
		t.Skip(got)
	}
	if !strings.Contains(got, "this connection comes from a confined process") {
		t.Errorf("the confined command got %s", got)
	}
	if _, err := os.Stat(escaped); err == nil {
		t.Error("it has got out")
	}
	if got := run("-w", dir, "--", "touch", escaped); got != "" {
		t.Errorf("without a sandbox: %s", got)
	}
	if _, err := os.Stat(escaped); err != nil {
		t.Error(err)
	}
}

// squat is a process that listens where a NATS server should, and prints what a machine sends
// to it.
func squat() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, `INFO {"server_id":"x","version":"2.10.0","host":"127.0.0.1","port":4222,"headers":true,"max_payload":1048576,"proto":1,"auth_required":true}`+"\r\n")
		if line, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
			fmt.Print(line)
		}
		_ = conn.Close()
	}
}

// TestSystemSquattedFleet has a machine whose gateway is not up, and another user at its port.
func TestSystemSquattedFleet(t *testing.T) {
	testkit.System(t, testkit.Root)
	const owner, squatter = 61250, 61251
	as := func(uid uint32, cmd *exec.Cmd) *exec.Cmd {
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return cmd
	}
	started := func(cmd *exec.Cmd) {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	self, err := os.Open("/proc/self/exe") // other users may not enter its directory
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	listener := as(squatter, exec.Command("/proc/self/fd/3"))
	listener.ExtraFiles, listener.Env = []*os.File{self}, append(os.Environ(), roleVariable+"=squat")
	listener.Stderr = os.Stderr
	out, err := listener.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	started(listener)
	lines := bufio.NewReader(out)
	address, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}

	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	home := testkit.SocketDir(t)
	file := filepath.Join(home, "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{home, file} {
		if err := os.Chown(path, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	machine := func(flags ...string) *testkit.Buffer {
		args := append([]string{"join", "--fleet", "nats://" + strings.TrimSpace(address), "--token-file", file, "--name", "box"}, flags...)
		cmd := as(owner, exec.Command("/proc/self/fd/3", args...))
		cmd.ExtraFiles, cmd.Env = []*os.File{program}, append(os.Environ(), "HOME="+home, "XDG_RUNTIME_DIR="+home)
		log := new(testkit.Buffer)
		cmd.Stderr = log
		started(cmd)
		return log
	}
	// A command that asks the gateway, with the listener as its proxy.
	ask := as(owner, exec.Command("/proc/self/fd/3", "ls", "--gateway", "ws://gateway.invalid:80", "--token-file", file))
	ask.ExtraFiles, ask.Env = []*os.File{program}, append(os.Environ(), "HTTP_PROXY=http://"+strings.TrimSpace(address), "NO_PROXY=")
	if text, err := ask.CombinedOutput(); err == nil || !strings.Contains(string(text), "refusing to send a secret in clear to the user 61251") {
		t.Errorf("exec-fleet ls: %v, %s", err, text)
	}

	log := machine("--without=supervisor")
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !strings.Contains(log.String(), "refusing to send a secret in clear to the user 61251") || !strings.Contains(log.String(), "--server-user 61251") {
			return fmt.Errorf("the machine says %s", log)
		}
		return nil
	})
	// The first who sends anything is the one that has been told to.
	machine("--without=supervisor", "--server-user=61251", "--name=named")
	line, err := lines.ReadString('\n')
	if err != nil || !strings.Contains(line, token) || !strings.Contains(line, `"named"`) {
		t.Errorf("the listener has got %q, %v", line, err)
	}
}
