package doors

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/client"
	"execserver/internal/seccomp"
	"execserver/internal/testkit"
)

// limited executes a program under a limit: no_new_privs with so many filters of system calls,
// which allow everything, for a number; or as a user in a process namespace with a /proc of its
// own, in which this program was started, for "inside=UID".
func limited(limit string, argv []string) error {
	runtime.LockOSThread()
	if uid, ok := strings.CutPrefix(limit, "inside="); ok {
		id, err := strconv.Atoi(uid)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("proc", "/proc", "proc", 0, "")
		}
		if err == nil && id != 0 {
			err = syscall.Setresgid(id, id, id)
		}
		if err == nil && id != 0 {
			err = syscall.Setresuid(id, id, id)
		}
		if err != nil {
			return err
		}
		return unix.Exec(argv[0], argv, os.Environ())
	}
	filters, err := strconv.Atoi(limit)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	for range filters {
		if err == nil {
			err = seccomp.Install([]seccomp.Instruction{{Op: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}})
		}
	}
	if err != nil {
		return err
	}
	return unix.Exec(argv[0], argv, os.Environ())
}

// under returns a command that runs a program under a limit.
func under(limit string, argv ...string) *exec.Cmd {
	return exec.Command(programs+"/attacker", append([]string{"limited", limit}, argv...)...)
}

// inside returns a command that runs a program as a user in a process namespace of its own,
// which only root can make.
func inside(uid int, argv ...string) *exec.Cmd {
	cmd := under(fmt.Sprint("inside=", uid), argv...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	return cmd
}

// attackLike runs an attack in a command that wrap makes, as a user. It returns what the attack
// says.
func attackLike(t *testing.T, uid int, wrap func(argv ...string) *exec.Cmd, args ...string) string {
	t.Helper()
	cmd := wrap(append([]string{programs + "/attacker", "attack"}, args...)...)
	if cmd.SysProcAttr == nil || cmd.SysProcAttr.Cloneflags == 0 { // otherwise it becomes the user inside
		cmd = as(uid, cmd)
	}
	cmd.Dir = "/"
	home := folder(t, uid) // not that of the server: nothing there tells the server about it
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_STATE_HOME="+home, "XDG_RUNTIME_DIR="+home)
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return strings.TrimSpace(string(text))
}

func plainly(argv ...string) *exec.Cmd { return exec.Command(argv[0], argv[1:]...) }

func sandboxed(argv ...string) *exec.Cmd {
	return exec.Command(programs+"/exec-server", append([]string{"sandbox", "--read", "/", "--"}, argv...)...)
}

func filtered(argv ...string) *exec.Cmd { return under("1", argv...) }

// TestEveryListenerRefusesConfined attacks each kind of listener from processes that something
// else has confined, and with another home: no program has told the server about them.
func TestEveryListenerRefusesConfined(t *testing.T) {
	for name, uid := range users() {
		for i, listener := range []string{"serve", "unix", "connect", "forward"} {
			uid := uid
			if uid == ordinary {
				uid = alone + i
			}
			t.Run(name+"/"+listener, func(t *testing.T) {
				t.Parallel() // it mostly waits
				at, way := listen(t, uid, listener)
				confiners := map[string]func(...string) *exec.Cmd{"filter": filtered}
				if listener != "unix" { // the sandbox hides sockets
					confiners["sandbox"] = sandboxed
				}
				if os.Geteuid() == 0 {
					confiners["namespace"] = func(argv ...string) *exec.Cmd { return inside(uid, argv...) }
				}
				for by, wrap := range confiners {
					for _, way := range []string{way, "hidden " + way} {
						file := filepath.Join(folder(t, uid), "file")
						got := attackLike(t, uid, wrap, way, at, "", file)
						if strings.Contains(got, "cannot be enforced") {
							t.Skip(got)
						}
						if listener != "forward" && !strings.Contains(got, confinedText) && !strings.Contains(got, unknownText) {
							t.Errorf("%s, %s: got %q", by, way, got)
						}
						expectFile(t, file, false)
					}
				}
				if os.Geteuid() == 0 && uid != 0 { // a command that root has confined
					file := filepath.Join(folder(t, uid), "file")
					for by, wrap := range confiners {
						if by == "namespace" {
							wrap = func(argv ...string) *exec.Cmd { return inside(0, argv...) }
						}
						attackLike(t, 0, wrap, way, at, "", file)
						expectFile(t, file, false)
					}
				}
				legitimate := []string{way}
				if os.Geteuid() == 0 { // otherwise other tests may confine something of this user
					legitimate = append(legitimate, "hidden "+way) // as sshd is
				}
				for _, way := range legitimate {
					file := filepath.Join(folder(t, uid), "file")
					attackLike(t, uid, plainly, way, at, "", file)
					expectFile(t, file, true)
				}
			})
		}
	}
}

// alone is the first of some users who do nothing but what one test has them do. While a
// process of a user is confined, nobody of that user may be hidden.
const alone = 61240

// listen starts a program that listens, and returns the address and the way to attack it.
func listen(t *testing.T, uid int, listener string, flags ...string) (at, way string) {
	t.Helper()
	program := programs + "/exec-server"
	switch listener {
	case "serve":
		return serve(t, uid, append(flags, "--listen", "ws://127.0.0.1:0")...).address, "plain"
	case "unix":
		return serve(t, uid, append(flags, "--listen", "unix://"+folder(t, uid)+"/socket")...).address, "lines"
	case "connect":
		args := append([]string{"connect", "--listen", "ws://127.0.0.1:0"}, flags...)
		return launch(t, uid, exec.Command(program, append(args, "--", "/bin/sh")...)).address, "plain"
	}
	d := serve(t, uid, "--listen", "unix://"+folder(t, uid)+"/socket")
	far := serve(t, uid, "--listen", "ws://127.0.0.1:0")
	args := append([]string{"forward", "--url", d.url}, flags...)
	return launch(t, uid, exec.Command(program, append(args, "127.0.0.1:0:"+far.address)...)).address, "plain"
}

// TestAllowConfinedPeers lets a confined process in where the operator says so.
func TestAllowConfinedPeers(t *testing.T) {
	for name, uid := range users() {
		for _, listener := range []string{"serve", "unix", "connect", "forward"} {
			t.Run(name+"/"+listener, func(t *testing.T) {
				t.Parallel()
				at, way := listen(t, uid, listener, "--allow-confined-peers")
				file := filepath.Join(folder(t, uid), "file")
				attackLike(t, uid, filtered, way, at, "", file)
				expectFile(t, file, true)
			})
		}
	}
}

// TestHardenedPeers has a server and its clients under filters of their own, as services of
// systemd are: a client with no more of them than the server has is not confined by that.
func TestHardenedPeers(t *testing.T) {
	for name, uid := range users() {
		for _, listener := range []string{"ws://127.0.0.1:0", "unix://"} {
			for client, in := range map[string]bool{"0": true, "2": true, "3": true, "4": false} {
				t.Run(name+"/"+listener[:2]+"/"+client, func(t *testing.T) {
					t.Parallel()
					way, address := "plain", listener
					if listener == "unix://" {
						way, address = "lines", listener+folder(t, uid)+"/socket"
					}
					d := launch(t, uid, under("3", programs+"/exec-server", "--listen", address))
					file := filepath.Join(folder(t, uid), "file")
					got := attackLike(t, uid, func(argv ...string) *exec.Cmd { return under(client, argv...) }, way, d.address, "", file)
					if !in && !strings.Contains(got, confinedText) {
						t.Errorf("got %q", got)
					}
					expectFile(t, file, in)
				})
			}
		}
	}
}

// TestSidecar has a server in a process namespace of its own, with the loopback address of the
// machine, as in a pod: it does not see its clients, and still refuses its own sandboxes.
func TestSidecar(t *testing.T) {
	testkit.System(t, testkit.Root)
	for name, uid := range users() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := launchIn(t, uid, inside(uid, programs+"/exec-server", "--listen", "ws://127.0.0.1:0"))
			file := filepath.Join(folder(t, uid), "file")
			for _, client := range []int{uid, 0} { // root passes the ports of pods on
				if got := attackAs(t, client, "plain", d.address, "", file); got != "101" {
					t.Errorf("user %d: got %q; %s", client, got, d.log)
				}
			}
			expectFile(t, file, true)
			again := filepath.Join(folder(t, uid), "file")
			got := run(t, connected(t, d), "confined", []string{programs + "/attacker", "attack", "plain", d.address, "", again}, networkSandbox(""))
			if strings.Contains(got, "cannot be enforced") {
				t.Skip(got)
			}
			if !strings.HasPrefix(got, "403 ") {
				t.Errorf("a confined command: got %q", got)
			}
			expectFile(t, again, false)
		})
	}
}

// TestContainer has a client in a process namespace of its own, as in a container with the
// network of the machine. The server cannot know that it may get out.
func TestContainer(t *testing.T) {
	testkit.System(t, testkit.Root)
	for name, uid := range users() {
		t.Run(name, func(t *testing.T) {
			d := serve(t, uid, "--listen", "ws://127.0.0.1:0", "--allow-confined-peers")
			file := filepath.Join(folder(t, uid), "file")
			got := attackLike(t, uid, func(argv ...string) *exec.Cmd { return inside(uid, argv...) }, "plain", d.address, "", file)
			if got != "101" {
				t.Errorf("got %q; %s", got, d.log)
			}
		})
	}
}

// squat listens at a port and prints what it gets from clients. It lets them through, as a proxy
// would, and prints what they send to the server. It accepts nothing if the address ends in "!".
func squat(address string) {
	address, never := strings.CutSuffix(address, "!")
	l, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ws://" + l.Addr().String())
	if never {
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		from := bufio.NewReader(conn)
		if printRequest(from) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
			printRequest(from)
		}
		_ = conn.Close()
	}
}

// printRequest prints the head of a request, and reports whether it asks a proxy for a server. It
// does not wait for the rest of what is not HTTP.
func printRequest(from *bufio.Reader) (asksProxy bool) {
	if first, err := from.Peek(1); err != nil || first[0] < ' ' {
		return false
	}
	for {
		line, err := from.ReadString('\n')
		fmt.Fprint(os.Stderr, line)
		if strings.HasPrefix(line, "CONNECT ") {
			asksProxy = true
		}
		if err != nil || strings.TrimSpace(line) == "" {
			return asksProxy
		}
	}
}

// TestWhoGetsTheToken has somebody else at the port of a server that is not up, and clients
// with a token.
func TestWhoGetsTheToken(t *testing.T) {
	for name, uid := range users() {
		own := fmt.Sprint(uid)
		squatter := func(uid int, wrap func(...string) *exec.Cmd) *daemon {
			return launch(t, uid, wrap(programs+"/attacker", "squat", "127.0.0.1:0"))
		}
		rows := []struct {
			name     string
			listener *daemon
			flags    []string
			want     string // of the error; "" if the listener gets the token
		}{
			{"its user", squatter(uid, plainly), nil, ""},
			{"hardened", squatter(uid, filtered), nil, ""},
			{"in a sandbox", squatter(uid, sandboxed), nil, "--server-user " + userName(uid)},
			{"in a sandbox, named", squatter(uid, sandboxed), []string{"--server-user", own}, ""},
		}
		if os.Geteuid() == 0 {
			rows = append(rows, []struct {
				name     string
				listener *daemon
				flags    []string
				want     string
			}{
				{"root", squatter(0, plainly), nil, ""},
				{"another", squatter(another, plainly), nil, "the user 61235"},
				{"another, in a container", launchIn(t, another, inside(another, programs+"/attacker", "squat", "127.0.0.1:0")), nil, "the user 61235"},
				{"another, named", squatter(another, plainly), []string{"--server-user", "61235"}, ""},
				{"another, while one is named", squatter(another, plainly), []string{"--server-user", "61236"}, "the user 61235"},
			}...)
		}
		for _, row := range rows {
			t.Run(name+"/"+row.name, func(t *testing.T) {
				file, token := secret(t, uid)
				args := append([]string{"run", "--url", row.listener.url, "--token-file", file}, row.flags...)
				text, err := as(uid, exec.Command(programs+"/exec-server", append(args, "--", "true")...)).CombinedOutput()
				if err == nil {
					t.Errorf("the command ran: %s", text)
				}
				if row.want != "" && (!strings.Contains(string(text), row.want) || !strings.Contains(string(text), "refusing to send a secret")) {
					t.Errorf("got %s", text)
				}
				got := func() error {
					if !strings.Contains(row.listener.log.String(), token) {
						return fmt.Errorf("the listener has got %q; the client says %s", row.listener.log, text)
					}
					return nil
				}
				if row.want == "" { // what it has got may come later
					testkit.WaitFor(t, testkit.Patience, got)
				} else if got() == nil {
					t.Errorf("the listener has got %q", row.listener.log)
				}
			})
		}
	}
}

// TestWhichProxyGetsTheToken has somebody else at the port of a local proxy, and clients with
// secrets for the server behind it, or for the proxy itself.
func TestWhichProxyGetsTheToken(t *testing.T) {
	testkit.System(t, testkit.Root)
	const password = "password-of-the-proxy"
	for name, uid := range users() {
		file, token := secret(t, uid)
		rows := []struct {
			name, server string
			listener     int    // its user
			proxy        string // before its address
			flags        []string
			want         string // what the listener gets; "" if the client refuses
		}{
			{"its user", "ws", uid, "http://", nil, token},
			{"another", "ws", another, "http://", nil, ""},
			{"another, named", "ws", another, "http://", []string{"--server-user", "61235"}, token},
			{"another, SOCKS", "ws", another, "socks5h://", nil, ""},
			{"another, with TLS behind it", "wss", another, "http://", nil, "CONNECT box.invalid:80"},
			{"another, with a password", "wss", another, "http://me:" + password + "@", nil, ""},
			{"its user, with a password", "wss", uid, "http://me:" + password + "@", nil, "Proxy-Authorization: "},
		}
		for _, row := range rows {
			t.Run(name+"/"+row.name, func(t *testing.T) {
				listener := launch(t, row.listener, exec.Command(programs+"/attacker", "squat", "127.0.0.1:0"))
				args := append([]string{"run", "--url", row.server + "://box.invalid:80", "--token-file", file}, row.flags...)
				command := as(uid, exec.Command(programs+"/exec-server", append(args, "--", "true")...))
				proxy := row.proxy + listener.address
				command.Env = append(os.Environ(), "HTTP_PROXY="+proxy, "HTTPS_PROXY="+proxy, "NO_PROXY=")
				text, err := command.CombinedOutput()
				if err == nil {
					t.Errorf("the command ran: %s", text)
				}
				if row.want == "" {
					for _, want := range []string{"connect to the proxy " + listener.address + ": refusing to send a secret in clear to the user 61235", "--server-user 61235"} {
						if !strings.Contains(string(text), want) {
							t.Errorf("the client says %q, without %q", text, want)
						}
					}
					if listener.log.String() != "" {
						t.Errorf("the listener has got %q", listener.log)
					}
					return
				}
				testkit.WaitFor(t, testkit.Patience, func() error {
					if !strings.Contains(listener.log.String(), row.want) {
						return fmt.Errorf("the listener has got %q; the client says %s", listener.log, text)
					}
					return nil
				})
			})
		}
	}
}

// TestNobodyAccepts has a port at which somebody listens and accepts nothing: the kernel does
// not say who would.
func TestNobodyAccepts(t *testing.T) {
	uid := os.Geteuid()
	cmd := exec.Command(programs+"/attacker", "squat", "127.0.0.1:0!")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	d := launch(t, uid, cmd)
	file, _ := secret(t, uid)
	_, err = client.Dial(t.Context(), d.url, &client.Options{TokenFile: file, ConnectTimeout: time.Second})
	if err == nil || !strings.Contains(err.Error(), "unknown listener of this machine: nobody has accepted the connection") {
		t.Error(err)
	}
}

// userName names a user as the programs do.
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}

// TestUnitsMayUseEachOther compares the settings of the packaged units that make filters of
// system calls: the gateway, which others connect to, must have all that the others have.
func TestUnitsMayUseEachOther(t *testing.T) {
	filtering := []string{
		"LockPersonality", "MemoryDenyWriteExecute", "PrivateDevices", "ProtectClock", "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules",
		"ProtectKernelTunables", "RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "SystemCallArchitectures", "SystemCallFilter",
	}
	settings := func(unit string) map[string]bool {
		text, err := os.ReadFile("../../deploy/systemd/" + unit + ".service")
		if err != nil {
			t.Fatal(err)
		}
		set := make(map[string]bool)
		for line := range strings.Lines(string(text)) {
			if name, _, ok := strings.Cut(line, "="); ok && slices.Contains(filtering, name) {
				set[name] = true
			}
		}
		return set
	}
	server, machine, gateway := settings("exec-server"), settings("exec-fleet-join"), settings("exec-fleet-gateway")
	if !maps.Equal(server, machine) || len(server) == 0 {
		t.Errorf("exec-server has filters by %v, and exec-fleet-join by %v", server, machine)
	}
	for name := range server {
		if !gateway[name] {
			t.Errorf("exec-fleet-gateway has no filter by %s, and would refuse what the others run", name)
		}
	}
}
