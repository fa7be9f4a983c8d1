//go:build unix

package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// Verdicts of doctor.
const (
	fine    = "ok"
	warning = "warning"
	problem = "problem"
)

// finding is a finding in the output of doctor --json.
type finding struct{ Check, Verdict, Text, Mend string }

// diagnosis is the output of doctor --json.
type diagnosis struct {
	OK       bool
	Findings []finding
	code     int
	text     string
}

// diagnose runs doctor in an environment of its own.
func diagnose(t *testing.T, environment []string, args ...string) (d diagnosis) {
	t.Helper()
	command := exec.Command("exec-server", append([]string{"doctor", "--json"}, args...)...)
	command.Env = append(os.Environ(), "CODEX_HOME="+t.TempDir(), "CODEX_EXEC_SERVER_URL=")
	command.Env = append(command.Env, environment...)
	out, err := command.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		d.code, d.text = exit.ExitCode(), string(exit.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	d.text += string(out)
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatalf("%v: %s", err, d.text)
	}
	if want := map[bool]int{true: 0, false: 1}[d.OK]; d.code != want {
		t.Errorf("exit code %d, want %d: %s", d.code, want, d.text)
	}
	return d
}

// expect expects a finding with texts in what is wrong and in how to mend it.
func (d diagnosis) expect(t *testing.T, check, v, text, mend string) {
	t.Helper()
	if !slices.ContainsFunc(d.Findings, func(f finding) bool {
		return f.Check == check && f.Verdict == v && strings.Contains(f.Text, text) && strings.Contains(f.Mend, mend)
	}) {
		t.Errorf("there is no %s about the %s with %q and %q:\n%s", v, check, text, mend, d.text)
	}
	if v == problem && d.OK {
		t.Errorf("it says that all is well:\n%s", d.text)
	}
}

// isLast expects that doctor did not go on after a check.
func (d diagnosis) isLast(t *testing.T, check string) {
	t.Helper()
	if last := d.last(); last != check {
		t.Errorf("it went on with %s after %s:\n%s", last, check, d.text)
	}
}

// last returns the last check.
func (d diagnosis) last() string { return d.Findings[len(d.Findings)-1].Check }

// configured returns the environment of a program for which Codex's configuration has an
// entry "box" with these lines.
func configured(t *testing.T, mode os.FileMode, lines ...string) (environment []string, path string) {
	t.Helper()
	home := t.TempDir()
	path = filepath.Join(home, "environments.toml")
	text := "[[environments]]\nid = \"box\"\n" + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return []string{"CODEX_HOME=" + home}, path
}

func urlLine(url string) string { return fmt.Sprintf("url = %q", url) }

// TestDoctorOfAHealthyServer finds nothing wrong, over each way.
func TestDoctorOfAHealthyServer(t *testing.T) {
	healthy := func(d diagnosis, checks ...string) {
		t.Helper()
		if !d.OK {
			t.Errorf("it finds a problem:\n%s", d.text)
		}
		for _, check := range append(checks, "version", "directory", "clock") {
			d.expect(t, check, fine, "", "")
		}
	}
	s := newServer(t, "--sandbox=off")
	healthy(diagnose(t, nil, "--url", s.url), "name", "tcp", "token", "handshake")
	environment, _ := configured(t, 0o600, urlLine(s.url), `auth_bearer_token = "not needed"`)
	healthy(diagnose(t, environment, "--on", "box"), "name", "tcp", "token", "handshake")
	healthy(diagnose(t, append(environment, "PATH=/bin:/usr/bin"), "--on", "local"), "name")
	socket := newServer(t, "--sandbox=off", "--listen", "unix://"+filepath.Join(testkit.SocketDir(t), "s"))
	healthy(diagnose(t, []string{"CODEX_EXEC_SERVER_URL="}, "--url", socket.url), "socket", "handshake")
	self, err := exec.LookPath("exec-server")
	if err != nil {
		t.Fatal(err)
	}
	environment, _ = configured(t, 0o600, fmt.Sprintf("program = %q", self), `args = ["--listen", "stdio"]`)
	healthy(diagnose(t, environment, "--on", "box"), "name", "program", "handshake")

	out, err := exec.Command("exec-server", "doctor", "--url", s.url).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		if !strings.HasPrefix(line, "ok ") && !strings.HasPrefix(line, "warning  sandbox") {
			t.Errorf("got the line %q", line)
		}
	}
}

// TestDoctorOfAllMachines lists the machines, with those that do not answer.
func TestDoctorOfAllMachines(t *testing.T) {
	diagnose(t, nil, "--all").expect(t, "name", problem, "no machine is configured", "exec-server codex-config add")
	s := newServer(t, "--sandbox=off")
	environment, _ := configured(t, 0o600, urlLine(s.url), "[[environments]]", `id = "down"`, urlLine("ws://127.0.0.1:1"),
		"[[environments]]", `id = "broken"`, `program = "false"`)
	d := diagnose(t, environment, "--all")
	var names []string
	for _, f := range d.Findings {
		names = append(names, f.Check)
	}
	if want := []string{"box", "down", "broken"}; !slices.Equal(names, want) {
		t.Errorf("it lists %v, want %v", names, want)
	}
	d.expect(t, "box", fine, s.url+" answers, after ", "")
	d.expect(t, "down", problem, "cannot connect to 127.0.0.1:1: connection refused", "start a server there")
	d.expect(t, "broken", problem, "false: the program ended with the code 1 before it answered", "run it by hand")
	environment, _ = configured(t, 0o600, urlLine(s.url))
	if d := diagnose(t, environment, "--all"); !d.OK {
		t.Errorf("all machines answer, but: %s", d.text)
	}
}

// TestDoctorOfSeveralMachines warns that Codex may use another machine than it should.
func TestDoctorOfSeveralMachines(t *testing.T) {
	environment, _ := configured(t, 0o600, urlLine("ws://127.0.0.1:1"), "[[environments]]", `id = "production"`, urlLine("ws://127.0.0.1:1"))
	diagnose(t, environment, "--on", "box").expect(t, "fallback", warning, "when Codex has no link to box, it uses production instead", "CODEX_HOME")
	environment, _ = configured(t, 0o600, urlLine("ws://127.0.0.1:1"))
	for _, f := range diagnose(t, environment, "--on", "box").Findings {
		if strings.Contains(f.Text, "instead") && !strings.Contains(f.Text, "this machine") {
			t.Errorf("with one machine it says: %s", f.Text)
		}
	}
}

// TestDoctorOfTheConfiguration has what is wrong on this machine.
func TestDoctorOfTheConfiguration(t *testing.T) {
	d := diagnose(t, nil)
	d.expect(t, "name", problem, "no machine is named", "")
	environment, path := configured(t, 0o600, urlLine("ws://127.0.0.1:1"))
	d = diagnose(t, environment, "--on", "bix")
	d.expect(t, "name", problem, "environment `bix` is not configured in "+path+"; the environments are local and box", "exec-server codex-config")
	d.isLast(t, "name")
	environment, _ = configured(t, 0o600, "port = 1")
	diagnose(t, environment, "--on", "box").expect(t, "name", problem, "unknown key environments.port", "correct the file")
	environment, path = configured(t, 0o622, urlLine("ws://127.0.0.1:1"))
	d = diagnose(t, environment, "--on", "box")
	d.expect(t, "file", problem, "others can write", "chmod go-w "+path)
	d.expect(t, "tcp", problem, "", "") // it goes on
	environment, path = configured(t, 0o644, urlLine("ws://127.0.0.1:1"), `auth_bearer_token = "x"`)
	diagnose(t, environment, "--on", "box").expect(t, "file", warning, "others can read", "chmod 600 "+path)
	diagnose(t, nil, "--url", "http://127.0.0.1:1").expect(t, "name", problem, "not the URL of a server", "ws://HOST:PORT")
}

// TestDoctorOfTheNetwork has what is wrong on the way to a server.
func TestDoctorOfTheNetwork(t *testing.T) {
	gone := testkit.FreeAddress(t)
	d := diagnose(t, nil, "--url", "ws://nothing.invalid:1")
	d.expect(t, "host", problem, "the name nothing.invalid cannot be resolved", "check the name")
	d.isLast(t, "host")
	d = diagnose(t, nil, "--url", "ws://"+gone)
	d.expect(t, "tcp", problem, "cannot connect to "+gone+": connection refused", "start a server there")
	d.isLast(t, "tcp")
	d = diagnose(t, []string{"HTTP_PROXY=http://" + gone}, "--url", "ws://192.0.2.1:80")
	d.expect(t, "proxy", fine, "go through the proxy "+gone, "")
	d.expect(t, "tcp", problem, "connection refused", "check HTTP_PROXY")
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(407) }))
	t.Cleanup(proxy.Close)
	d = diagnose(t, []string{"HTTP_PROXY=" + proxy.URL}, "--url", "ws://192.0.2.1:80")
	d.expect(t, "proxy", problem, "the proxy requires a user", "HTTP_PROXY")

	// A listener whose queue is full answers nobody.
	full, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = full.Close() })
	raw, err := full.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { _ = syscall.Listen(int(fd), 0) }); err != nil {
		t.Fatal(err)
	}
	var answered []int
	at := &syscall.SockaddrInet4{Port: full.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	for range 16 { // which go on connecting, so that the queue stays full
		s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Close(s) })
		if err := syscall.SetNonblock(s, true); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Connect(s, at); err == nil || errors.Is(err, syscall.EINPROGRESS) {
			answered = append(answered, s)
		}
	}
	environment, _ := configured(t, 0o600, urlLine("ws://"+full.Addr().String()), "connect_timeout_sec = 0.2")
	d = diagnose(t, environment, "--on", "box")
	answered = slices.DeleteFunc(answered, func(s int) bool {
		_, err := syscall.Getpeername(s)
		return err != nil
	})
	if len(answered) < 16 { // or this system answers for a listener whose queue is full
		d.expect(t, "tcp", problem, "no answer", "firewalls")
	}

	dir := testkit.SocketDir(t)
	socket := filepath.Join(dir, "s")
	diagnose(t, nil, "--url", "unix://"+socket).expect(t, "socket", problem, "no such file or directory", "start a server there")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	_ = left.Close()
	diagnose(t, nil, "--url", "unix://"+socket).expect(t, "socket", problem, "connection refused", "its server is gone")
}

// TestDoctorOfTLS has servers with certificates that the client does not accept.
func TestDoctorOfTLS(t *testing.T) {
	authority := testkit.NewAuthority(t, "known")
	trusting := []string{"SSL_CERT_FILE=" + authority.File}
	serve := func(change func(*x509.Certificate), args ...string) string {
		t.Helper()
		certificate, key := authority.ServerWith(change)
		s := newServer(t, append([]string{"--sandbox=off", "--listen", "wss://127.0.0.1:0", "--tls-cert", certificate, "--tls-key", key}, args...)...)
		return s.url
	}
	good := serve(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(30 * 24 * time.Hour) })
	diagnose(t, trusting, "--url", good).expect(t, "tls", fine, "TLS 1.3, with a certificate that is valid for 29d", "")
	d := diagnose(t, nil, "--url", good)
	d.expect(t, "tls", problem, "unknown authority", "SSL_CERT_FILE")
	d.isLast(t, "tls")
	plain := strings.Replace(good, "wss://", "ws://", 1)
	diagnose(t, trusting, "--url", plain).expect(t, "handshake", problem, "the server speaks TLS", "use wss://")
	diagnose(t, trusting, "--url", serve(nil)).expect(t, "tls", warning, "expires in 59m", "renew it")
	other := serve(func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 1)} })
	diagnose(t, trusting, "--url", other).expect(t, "tls", problem, "192.0.2.1", "use a name that the certificate has")
	old := serve(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	diagnose(t, trusting, "--url", old).expect(t, "tls", problem, "expired", "renew the certificate")
	mutual := serve(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(30 * 24 * time.Hour) }, "--tls-client-ca", authority.File)
	diagnose(t, trusting, "--url", mutual).expect(t, "token", problem, "client certificate", "")
	s := newServer(t)
	d = diagnose(t, nil, "--url", strings.Replace(s.url, "ws://", "wss://", 1))
	d.expect(t, "tls", problem, "the server does not use TLS", "use ws://")

	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a token of the test"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		if n, ok := address.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			s := newServer(t, "--listen", "ws://"+n.IP.String()+":0", "--ws-auth", "capability-token", "--ws-token-file", token)
			d = diagnose(t, nil, "--url", s.url, "--token-file", token)
			d.expect(t, "tls", warning, "can read the token", "use wss://")
			d.expect(t, "token", fine, "the server accepts it", "")
			return
		}
	}
}

// TestDoctorOfTheToken has tokens that are missing, wrong and expired.
func TestDoctorOfTheToken(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const secret = "the secret of the server, of 32 bytes"
	good := write("good", secret, 0o600)
	s := newServer(t, "--sandbox=off", "--ws-auth", "capability-token", "--ws-token-file", good)
	diagnose(t, nil, "--url", s.url).expect(t, "token", problem, "the server requires one", "--token-file")
	diagnose(t, nil, "--url", s.url, "--token-file", good).expect(t, "token", fine, "the server accepts it", "")
	d := diagnose(t, nil, "--url", s.url, "--token-file", write("open", secret, 0o644))
	d.expect(t, "token", warning, "others can read", "chmod 600 "+dir+"/open")
	d.expect(t, "token", fine, "the server accepts it", "")
	diagnose(t, nil, "--url", s.url, "--token-file", write("wrong", "another token", 0o600)).expect(t, "token", problem, "the server refuses it", "compare it")
	diagnose(t, nil, "--url", s.url, "--token-file", dir+"/none").expect(t, "token", problem, "no such file or directory", "correct --token-file")
	d = diagnose(t, nil, "--url", s.url, "--token-file", write("empty", "\n", 0o600))
	d.expect(t, "token", problem, "is empty", "write the server's token into it")
	d.isLast(t, "token")

	signed := newServer(t, "--sandbox=off", "--tokens", write("tokens", fmt.Sprintf("[[token]]\nname = \"signed\"\nsecret = %q\nscope = [\"full\"]\n", good), 0o600))
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"alg":"HS256"}`)) + "." + encode(fmt.Appendf(nil, `{"exp":%d}`, time.Now().Add(-time.Hour).Unix()))
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = io.WriteString(mac, text)
	d = diagnose(t, nil, "--url", signed.url, "--token-file", write("expired", text+"."+encode(mac.Sum(nil)), 0o600))
	d.expect(t, "token", problem, "expired", "get a new one")
}

// TestDoctorOfTheHandshake has servers of other kinds.
func TestDoctorOfTheHandshake(t *testing.T) {
	t.Parallel() // it waits for a timeout
	answer := func(status int, text string) string {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		}))
		t.Cleanup(web.Close)
		return "ws://" + web.Listener.Addr().String()
	}
	for status, want := range map[int]string{200: "this is not an exec-server", 404: "status 404", 403: "the server refuses this client: go away", 503: "status 503"} {
		diagnose(t, nil, "--url", answer(status, "go away")).expect(t, "handshake", problem, want, "")
	}
	// greeting serves a text to everybody, and then nothing more.
	greeting := func(text string) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, text)
				go func() {
					_, _ = io.Copy(io.Discard, conn)
					_ = conn.Close()
				}()
			}
		}()
		return "ws://" + l.Addr().String()
	}
	diagnose(t, nil, "--url", greeting("SSH-2.0-OpenSSH_9.9\r\n")).expect(t, "handshake", problem, "this is a server for SSH", `program = "ssh"`)
	// TCP has no more time, so that it must be enough for a busy machine.
	environment, _ := configured(t, 0o600, urlLine(greeting("")), "connect_timeout_sec = 15")
	diagnose(t, environment, "--on", "box").expect(t, "handshake", problem, "no answer", "check whether an exec-server")
	s := newServer(t)
	diagnose(t, nil, "--url", s.url+"/else").expect(t, "handshake", problem, "this is not an exec-server", "check the port and the path")
}

// TestDoctorOfAProgram has programs that do not lead to a server.
func TestDoctorOfAProgram(t *testing.T) {
	program := func(lines ...string) diagnosis {
		t.Helper()
		environment, _ := configured(t, 0o600, lines...)
		return diagnose(t, environment, "--on", "box")
	}
	script := func(text string) diagnosis {
		t.Helper()
		return program(`program = "sh"`, fmt.Sprintf("args = [\"-c\", %q]", text))
	}
	program(`program = "no-such-program"`).expect(t, "program", problem, "no-such-program is not found", "install it")
	program(fmt.Sprintf("program = %q", t.TempDir())).expect(t, "program", problem, "", "")
	d := script("exec-server-that-is-not-installed --listen stdio")
	d.expect(t, "program", fine, "/sh starts", "")
	d.expect(t, "stderr", warning, "not found", "")
	d.expect(t, "handshake", problem, "exec-server is not found there", "install exec-server there")
	script("exit 3").expect(t, "handshake", problem, "ended with the code 3", "run it by hand: sh -c")
	program(`program = "sleep"`, `args = ["60"]`, "initialize_timeout_sec = 0.2").expect(t, "handshake", problem, "does not answer", "--listen stdio")
	d = script("echo a banner >&2; exec exec-server --listen stdio --sandbox=off")
	d.expect(t, "stderr", warning, "a banner", "silence it")
	d.expect(t, "version", fine, "the server is", "")

	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip("there is no ssh")
	}
	_, port, _ := net.SplitHostPort(testkit.FreeAddress(t))
	d = program(`program = "ssh"`, fmt.Sprintf(`args = ["-F", "none", "-o", "BatchMode=yes", "-p", %q, "127.0.0.1", "exec-server", "--listen", "stdio"]`, port))
	d.expect(t, "stderr", warning, "Connection refused", "")
	d.expect(t, "handshake", problem, "the code 255", "start the SSH server there")
}

// TestDoctorOfTheMachine has what is wrong with a machine whose server answers.
func TestDoctorOfTheMachine(t *testing.T) {
	start := func(dir string, environment []string, script string) string {
		t.Helper()
		command := exec.Command("sh", "-c", script+"exec exec-server --listen ws://127.0.0.1:0 --sandbox=off")
		command.Dir = dir
		command.Env = append(os.Environ(), environment...)
		p, err := launch(command, true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.kill)
		return p.url
	}
	t.Run("directory", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "gone")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		url := start(dir, nil, "")
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		d := diagnose(t, nil, "--url", url)
		d.expect(t, "directory", problem, "is gone", "permanent directory")
		d.expect(t, "clock", fine, "", "") // it goes on
	})
	t.Run("clock", func(t *testing.T) {
		for offset, want := range map[int]string{-12: warning, 3600: problem, 0: fine} {
			bin := t.TempDir()
			date := fmt.Sprintf("#!/bin/sh\necho $(($(/bin/date +%%s) + %d))\n", offset)
			if err := os.WriteFile(filepath.Join(bin, "date"), []byte(date), 0o755); err != nil {
				t.Fatal(err)
			}
			url := start(t.TempDir(), []string{"PATH=" + bin + ":" + os.Getenv("PATH")}, "")
			diagnose(t, nil, "--url", url).expect(t, "clock", want, "clock", "")
		}
	})
	t.Run("limits", func(t *testing.T) {
		d := diagnose(t, nil, "--url", start(t.TempDir(), nil, "ulimit -Sn 200; (ulimit -u) >/dev/null 2>&1 && ulimit -Su 100 || ulimit -Sp 100; "))
		d.expect(t, "descriptors", warning, "only 200", "ulimit -n")
		if os.Geteuid() == 0 { // others may have as many processes already
			d.expect(t, "processes", warning, "only 100", "ulimit -u")
		}
	})
	t.Run("sandbox off", func(t *testing.T) {
		diagnose(t, nil, "--url", start(t.TempDir(), nil, "")).expect(t, "sandbox", warning, "turned it off", "--sandbox=off")
	})
	t.Run("sandbox", func(t *testing.T) {
		works := exec.Command("exec-server", "sandbox", "--read", "/", "--no-network", "--", "true").Run() == nil
		d := diagnose(t, nil, "--url", newServer(t).url)
		if works {
			d.expect(t, "sandbox", fine, "a command runs in one, by ", "")
		} else {
			d.expect(t, "sandbox", problem, "", "docs/sandbox.md")
		}
	})
	t.Run("released", func(t *testing.T) {
		command := exec.Command(testkit.Codex(t), "exec-server", "--listen", "ws://127.0.0.1:0")
		command.Env = append(os.Environ(), "CODEX_HOME="+t.TempDir())
		p, err := launch(command, true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.kill)
		diagnose(t, nil, "--url", p.url).expect(t, "version", warning, "a released Codex 0.", "start exec-server there")
	})
}

// TestDoctorTextIsOneLine checks that nothing that another machine says becomes a second
// line, or controls the terminal.
func TestDoctorTextIsOneLine(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(403)
		_, _ = io.WriteString(w, "no\nok       all is well \x1b[2J")
	}))
	t.Cleanup(web.Close)
	var out bytes.Buffer
	command := exec.Command("exec-server", "doctor", "--url", "ws://"+web.Listener.Addr().String())
	command.Stdout = &out
	if err := command.Run(); err == nil {
		t.Error("it finds nothing")
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if strings.ContainsRune(out.String(), '\x1b') || !strings.HasPrefix(lines[len(lines)-1], "problem") {
		t.Errorf("got %q", out.String())
	}
}
