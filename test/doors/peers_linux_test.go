package doors

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/internal/testkit/transcript"
	"execserver/protocol"
)

type object = map[string]any

// TestOtherUsers checks that the server admits only its own user and root over loopback.
func TestOtherUsers(t *testing.T) {
	testkit.System(t, testkit.Root)
	for _, test := range []struct {
		server, client int
		flags          []string
		want           string
	}{
		{0, 0, nil, "101"},
		{0, ordinary, nil, "403 without authentication this server serves its own user, 0, and not user 61234; " +
			"its operator can require a token, or admit every user of this machine"},
		{ordinary, ordinary, nil, "101"},
		{ordinary, 0, nil, "403 " + unknownText + "it comes from root, whose processes a program of another user may not examine; " + allowText},
		{ordinary, 0, []string{"--allow-confined-peers"}, "101"},
		{ordinary, another, nil, "403 without authentication this server serves its own user, 61234, and not user 61235; " +
			"its operator can require a token, or admit every user of this machine"},
		{0, ordinary, []string{"--insecure-no-auth"}, "101"},
		{ordinary, another, []string{"--insecure-no-auth"}, "101"},
	} {
		for _, loopback := range []string{"127.0.0.1:0", "[::1]:0", "127.8.8.8:0"} {
			for _, way := range []string{"plain", "pass", "multipath"} {
				t.Run(fmt.Sprint(test.server, " ", test.client, test.flags, loopback, way), func(t *testing.T) {
					d := serve(t, test.server, append(test.flags, "--listen", "ws://"+loopback)...)
					file := filepath.Join(folder(t, test.server), "file")
					want := test.want
					if test.server == ordinary && test.client == another && want == "101" && way == "multipath" && multipath() {
						// The server cannot examine that process, nor see whether it reads.
						want = "403 " + unknownText + "no process that this program may examine holds its other end, and over the protocol " +
							"mptcp it cannot be seen whether one reads, as it can over plain TCP; " + allowText
					}
					got := attackAs(t, test.client, way, d.address, "", file)
					if got != want {
						t.Errorf("got %q, want %q; %s", got, want, d.log)
					}
					expectFile(t, file, got == "101")
				})
			}
		}
	}
}

// multipath reports whether this machine has multipath TCP.
func multipath() bool {
	on, err := os.ReadFile("/proc/sys/net/mptcp/enabled")
	return err == nil && strings.TrimSpace(string(on)) != "0"
}

// TestWhoLeaves sends everything and exits. The kernel then says that root owns the socket,
// but the server must not admit it.
func TestWhoLeaves(t *testing.T) {
	testkit.System(t, testkit.Root)
	for name, uid := range users() {
		t.Run(name, func(t *testing.T) {
			d := serve(t, uid, "--listen", "ws://127.0.0.1:0")
			file := filepath.Join(folder(t, uid), "file")
			for range 20 {
				attackAs(t, another, "leave", d.address, "", file)
			}
			settle(t, d)
			expectFile(t, file, false)
		})
	}
}

// expectFile checks whether the attack has made its file.
func expectFile(t *testing.T, file string, want bool) {
	t.Helper()
	there := func() error {
		_, err := os.Stat(file)
		return err
	}
	if want {
		testkit.WaitFor(t, testkit.Patience, there)
	} else if there() == nil {
		t.Error("the attacker has run a command")
	}
}

// settle waits until a server has handled earlier connections.
func settle(t *testing.T, d *daemon) {
	t.Helper()
	settleIn(t, connected(t, d))
}

// connected connects as a legitimate client of the server's user. A process of that user which hides
// its descriptors stands for the one whose connection it is.
func connected(t *testing.T, d *daemon) *testclient.Session {
	t.Helper()
	if d.uid != os.Geteuid() {
		cmd := as(d.uid, exec.Command(programs+"/attacker", "hidden"))
		stdin, stdout := testkit.StartPiped(t, cmd)
		if _, err := io.ReadFull(stdout, make([]byte, len("hidden\n"))); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = stdin.Close()
			_ = cmd.Wait()
		})
	}
	session := &testclient.Session{URL: d.url, Patience: testkit.Patience, Dialer: d.dialer()}
	if err := testclient.Open(t.Context(), session); err != nil {
		t.Fatalf("%v; %s", err, d.log)
	}
	t.Cleanup(session.Close)
	return session
}

// dialer makes connections that belong to the server's user, as if that had made them.
func (d *daemon) dialer() *net.Dialer {
	return &net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if d.uid != os.Geteuid() {
			_ = raw.Control(func(fd uintptr) { err = unix.Fchown(int(fd), d.uid, d.uid) })
		}
		return err
	}}
}

// networkSandbox returns a policy with a network that allows all files to be read.
func networkSandbox(writable string) json.RawMessage {
	special := func(access, kind string) object {
		return object{"access": access, "path": object{"type": "special", "value": object{"kind": kind}}}
	}
	entries := []object{special("read", "root")}
	if writable != "" {
		entries = append(entries, object{"access": "write", "path": object{"type": "path", "path": "file://" + writable}})
	}
	text, _ := json.Marshal(object{
		"permissions": object{"type": "managed", "network": "enabled", "file_system": object{"type": "restricted", "entries": entries}},
		"cwd":         "file:///", "workspaceRoots": []string{}, "windowsSandboxLevel": "disabled",
	})
	return text
}

// run runs a command and returns its output followed by its exit code.
func run(t *testing.T, session *testclient.Session, id string, argv []string, sandbox json.RawMessage) string {
	t.Helper()
	output, err := start(t, session, id, argv, sandbox)
	if err != nil {
		return err.Error()
	}
	return output()
}

func start(t *testing.T, session *testclient.Session, id string, argv []string, sandbox json.RawMessage) (output func() string, err error) {
	t.Helper()
	var text strings.Builder
	p := &testclient.Process{ID: id, Take: func(_ string, data []byte) { text.Write(data) }}
	params := protocol.StartParams{ProcessID: id, Argv: argv, Cwd: protocol.URIPath("/"), Env: map[string]string{"PATH": os.Getenv("PATH")}, Sandbox: sandbox}
	if err := session.Start(t.Context(), p, params); err != nil {
		return nil, err
	}
	return func() string {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		code, err := p.Wait(ctx)
		if err != nil {
			return err.Error()
		}
		return text.String() + fmt.Sprint(code)
	}, nil
}

// TestConfinedPeer attacks the server from a sandbox with a network. The attacker has the
// token and hides in every way that a process can.
func TestConfinedPeer(t *testing.T) {
	for name, uid := range users() {
		for _, means := range []string{"127.0.0.1", "0.0.0.0", "[::]"} {
			t.Run(name+"/"+means, func(t *testing.T) {
				t.Parallel() // it mostly waits
				tokens, token := queryToken(t, uid)
				d := serve(t, uid, "--listen", "ws://"+means+":0", "--tokens", tokens)
				_, port, _ := net.SplitHostPort(d.address)
				d.url = "ws://127.0.0.1:" + port + "/?token=" + strings.ReplaceAll(token, " ", "+")
				session := connected(t, d)
				file := filepath.Join(folder(t, uid), "file")
				for _, target := range targets(means) {
					for _, way := range []string{"plain", "daemon", "pass", "multipath", "flight", "leave"} {
						argv := []string{programs + "/attacker", "attack", way, net.JoinHostPort(target, port), token, file}
						got := run(t, session, way+target, argv, networkSandbox(""))
						if strings.Contains(got, "cannot be enforced") {
							t.Skip(got)
						}
						refused := strings.HasPrefix(got, "403 "+confinedText) || strings.HasPrefix(got, "403 "+unknownText)
						switch {
						case way == "leave" && strings.HasPrefix(got, "left"):
						case way == "flight" && strings.HasPrefix(got, "403 nobody holds"):
						case !refused:
							t.Errorf("%s to %s: got %q", way, target, got)
						}
						expectFile(t, file, false)
					}
				}
				settleIn(t, session)
				expectFile(t, file, false)
				// Others get in while a sandbox with a network is in use.
				wait, err := start(t, session, "in use", []string{"/bin/sleep", "1"}, networkSandbox(""))
				if err != nil {
					t.Fatal(err)
				}
				if got := attackAs(t, uid, "plain", d.address, token, file); got != "101" {
					t.Errorf("while a sandbox is in use: got %q", got)
				}
				expectFile(t, file, true)
				if got := wait(); got != "0" {
					t.Errorf("the command ends with %s", got)
				}
			})
		}
	}
}

const (
	allowText    = "connect from outside, or have the operator of the program that listens allow confined peers (--allow-confined-peers)"
	confinedText = "this connection comes from a confined process, "
	unknownText  = "it cannot be found out whether this connection comes from a confined process: "
)

// targets returns addresses of this machine that reach a listener.
func targets(listen string) []string {
	if listen == "127.0.0.1" {
		return []string{"127.0.0.1"}
	}
	targets := []string{"127.0.0.1", "127.7.7.7"}
	if listen == "[::]" {
		targets = append(targets, "::1")
	}
	addresses, _ := net.InterfaceAddrs()
	for _, address := range addresses {
		if n, ok := address.(*net.IPNet); ok && !n.IP.IsLoopback() && n.IP.To4() != nil {
			return append(targets, n.IP.String())
		}
	}
	return targets
}

// TestPeerOfAnotherSandbox attacks a server from a sandbox of the subcommand, which runs in
// another process of the same user.
func TestPeerOfAnotherSandbox(t *testing.T) {
	for name, uid := range users() {
		for _, way := range []string{"plain", "hidden", "pass"} {
			t.Run(name+" "+way, func(t *testing.T) {
				d := serve(t, uid, "--listen", "ws://127.0.0.1:0")
				file := filepath.Join(folder(t, uid), "file")
				cmd := as(uid, exec.Command(programs+"/exec-server", "sandbox", "--read", "/", "--",
					programs+"/attacker", "attack", way, d.address, "", file))
				cmd.Env = append(os.Environ(), d.env...)
				text, err := cmd.CombinedOutput()
				if err != nil && strings.Contains(string(text), "cannot be enforced") {
					t.Skipf("%s", text)
				}
				if !strings.HasPrefix(string(text), "403 "+confinedText) && !strings.HasPrefix(string(text), "403 "+unknownText) {
					t.Errorf("got %q (%v); %s", text, err, d.log)
				}
				expectFile(t, file, false)
				connected(t, d) // the sandbox is not in use any more
			})
		}
	}
}

// TestPostedSocket attacks a server from a sandbox that has ended when the server looks. Its socket is in
// the queue of another program, as if a process held it that hides its descriptors. With multipath TCP the
// kernel takes what arrives off the socket, although nobody reads.
func TestPostedSocket(t *testing.T) {
	for name, uid := range users() {
		for _, way := range []string{"post", "post multipath"} {
			t.Run(name+" "+way, func(t *testing.T) {
				t.Parallel() // it mostly waits until the server gives up
				d := serve(t, uid, "--listen", "ws://127.0.0.1:0")
				session := connected(t, d) // with a process that hides its descriptors
				dir := folder(t, uid)
				file := filepath.Join(dir, "file")
				receiver, err := net.Listen("unix", receiverOf(file))
				if err != nil {
					t.Fatal(err)
				}
				defer receiver.Close()
				if err := os.Chmod(receiverOf(file), 0o666); err != nil {
					t.Fatal(err)
				}
				cmd := as(uid, exec.Command(programs+"/exec-server", "sandbox", "--read", "/", "--write", dir, "--",
					programs+"/attacker", "attack", way, d.address, "", file))
				cmd.Env = append(os.Environ(), d.env...)
				text, err := cmd.CombinedOutput()
				if err != nil && strings.Contains(string(text), "cannot be enforced") {
					t.Skipf("%s", text)
				}
				if string(text) != "posted <nil>\n" {
					t.Fatalf("got %q (%v)", text, err)
				}
				testkit.WaitFor(t, testkit.Patience, func() error { // the server logs a refusal, and answers one that it admits
					if log := d.log.String(); !strings.Contains(log, unknownText) && !strings.Contains(log, "no process reads") {
						if _, err := os.Stat(file); err != nil {
							return fmt.Errorf("the server has not handled the connection; %s", log)
						}
					}
					return nil
				})
				settleIn(t, session)
				expectFile(t, file, false)
			})
		}
	}
}

// TestConfinedUnixPeer attacks a server on a unix socket. The sandbox hides the socket at
// its own path but not at another hard link.
func TestConfinedUnixPeer(t *testing.T) {
	for name, uid := range users() {
		t.Run(name, func(t *testing.T) {
			dir := folder(t, uid)
			d := serve(t, uid, "--listen", "unix://"+dir+"/socket")
			if err := os.Link(dir+"/socket", dir+"/other"); err != nil {
				t.Skip(err)
			}
			link, err := transcript.DialUnix(dir + "/socket")
			if err != nil {
				t.Fatal(err)
			}
			var processes testclient.Processes
			conn := testclient.New(link, processes.Notify)
			t.Cleanup(conn.Drop)
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			if err := conn.Handshake(ctx, protocol.InitializeParams{ClientName: "test"}); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "file")
			attacker := processes.Of("p")
			err = conn.Call(ctx, protocol.MethodStart, object{
				"processId": "p", "argv": []string{programs + "/attacker", "attack", "lines", dir + "/other", "", file},
				"cwd": "file:///", "env": object{}, "tty": false, "sandbox": networkSandbox(""),
			}, nil)
			if err != nil && strings.Contains(err.Error(), "cannot be enforced") {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-attacker.Closed:
			case <-conn.Done():
				t.Fatal(conn.Err())
			case <-ctx.Done():
				t.Fatal("the attack does not end")
			}
			expectFile(t, file, false)
			testkit.WaitFor(t, testkit.Patience, func() error { // the log may arrive later
				said := attacker.Output.String()
				if log := d.log.String(); !strings.Contains(log, confinedText) && !strings.HasPrefix(said, "no connection") {
					return fmt.Errorf("%s\n%s", log, said)
				}
				return nil
			})
		})
	}
}

// settleIn is settle over a session that is open.
func settleIn(t *testing.T, session *testclient.Session) {
	t.Helper()
	if got := run(t, session, "settle", []string{"/bin/sleep", "0.2"}, nil); got != "0" {
		t.Errorf("the command ends with %s", got)
	}
}
