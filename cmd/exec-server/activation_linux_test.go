package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// activated returns a command that starts exec-server as systemd does, with these sockets
// to listen on.
func activated(t *testing.T, listeners []net.Listener, args ...string) *exec.Cmd {
	t.Helper()
	script := fmt.Sprintf(`export LISTEN_PID=$$ LISTEN_FDS=%d LISTEN_FDNAMES=test; exec exec-server "$@"`, len(listeners))
	command := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
	for _, listener := range listeners {
		file, err := listener.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		command.ExtraFiles = append(command.ExtraFiles, file)
	}
	return command
}

// listen listens until the test ends.
func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// TestSocketActivation starts servers with sockets and a service manager, such as systemd, has them, with
// and without a supervisor, and checks what their processes get of that.
func TestSocketActivation(t *testing.T) {
	t.Parallel()
	for supervisor, flags := range withAndWithoutSupervisor {
		for _, network := range []string{"unix", "tcp"} {
			address := "127.0.0.1:0"
			if network == "unix" {
				address = socketPath(t)
			}
			listener := listen(t, network, address)
			manager := testkit.NewServiceManager(t)
			hears := func(want string) {
				t.Helper()
				if err := manager.Hears(want); err != nil {
					t.Errorf("%s, %s: %v", network, supervisor, err)
				}
			}
			command := activated(t, []net.Listener{listener}, append([]string{"--listen=systemd"}, flags...)...)
			command.Env = append(os.Environ(), "TEST_OF_SERVER=server", manager.Environment())
			p, err := launch(command, true)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.kill)
			if want := listener.Addr().String(); p.address() != want {
				t.Errorf("it listens at %s, want %s", p.url, want)
			}
			hears("READY=1")
			out, err := exec.Command("exec-server", "run", "--url", p.url, "--", "sh", "-c",
				`echo from $TEST_OF_SERVER; env | grep -c -e ^LISTEN_ -e ^NOTIFY_; ls -l /proc/$$/fd | grep -c socket:`).CombinedOutput()
			if got := string(out); got != "from server\n0\n0\n" {
				t.Errorf("%s, %s: a process has so many variables and sockets of the server: %q, %v", network, supervisor, got, err)
			}
			if err := p.signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			hears("RELOADING=1\nMONOTONIC_USEC=[0-9]+")
			hears("READY=1")
			connect(t, p).handshake("") // so the server does not end when it drains
			if err := p.signal(syscall.SIGUSR2); err != nil {
				t.Fatal(err)
			}
			hears("STATUS=draining: no new sessions")
			if err := p.signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			hears("STOPPING=1")
			p.exits(t, 0)
			if network == "unix" {
				if _, err := os.Lstat(address); err != nil {
					t.Errorf("the server has removed the socket of systemd: %v", err)
				}
			}
		}
	}
}

// TestSocketActivationRefuses checks that a server holds the sockets of systemd to the
// rules for its own.
func TestSocketActivationRefuses(t *testing.T) {
	t.Parallel()
	tcp, open := listen(t, "tcp", "127.0.0.1:0"), listen(t, "tcp4", "0.0.0.0:0")
	unix, packets := listen(t, "unix", socketPath(t)), listen(t, "unixpacket", socketPath(t))
	for _, row := range []struct {
		sockets []net.Listener
		args    []string
		want    string
	}{
		{nil, nil, "systemd has passed no socket"},
		{[]net.Listener{tcp, unix}, nil, "run a server for each kind"},
		{[]net.Listener{packets}, nil, "with the descriptor 3: expected ListenStream="},
		{[]net.Listener{tcp, open}, nil, "refusing to listen on 0.0.0.0:"},
		{[]net.Listener{open}, nil, "without authentication: anyone who can reach it"},
		{[]net.Listener{tcp}, []string{"--allow-uid=1"}, "--allow-uid and --allow-gid require a unix socket"},
		{[]net.Listener{unix}, []string{"--ws-auth=capability-token", "--ws-token-sha256=" + strings.Repeat("a", 64)}, "does not apply to a unix socket"},
	} {
		for _, flags := range withAndWithoutSupervisor {
			out, err := activated(t, row.sockets, slices.Concat(row.args, flags, []string{"--listen=systemd"})...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), row.want) {
				t.Errorf("%v, %v: %s, want %q", err, row.args, out, row.want)
			}
		}
	}
	// A connection is not a listening socket.
	conn, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	file, err := conn.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	command := exec.Command("/bin/sh", "-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec exec-server --listen systemd")
	command.ExtraFiles = []*os.File{file}
	if out, err := command.CombinedOutput(); err == nil || !strings.Contains(string(out), "with the descriptor 3: it does not listen; the socket unit needs Accept=no") {
		t.Errorf("%v: %s", err, out)
	}
	// Those of another process are not for this one.
	command = exec.Command("/bin/sh", "-c", "LISTEN_PID=1 LISTEN_FDS=1 exec exec-server --listen systemd")
	if out, err := command.CombinedOutput(); err == nil || !strings.Contains(string(out), "systemd has passed no socket") {
		t.Errorf("%v: %s", err, out)
	}
}
