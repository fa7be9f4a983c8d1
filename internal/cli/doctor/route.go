package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"execserver/client"
	"execserver/client/environments"
	"execserver/internal/cli"
	"execserver/internal/cli/codexconf"
	"execserver/internal/sys"
	"execserver/protocol"
	"execserver/transport"
)

// doctorTimeout bounds each check.
const doctorTimeout = 10 * time.Second

// route is how this machine reaches a server.
type route struct {
	url     string
	command *exec.Cmd // instead of url: the program that starts a server
	opts    client.Options

	u     *url.URL // of url, unless that is a unix socket
	proxy *url.URL // nil without one
}

// String returns the address of the server, or the program that starts it, without secrets.
func (r *route) String() string {
	switch {
	case r.url != "":
		return cli.WithoutSecrets(r.url)
	case r.command != nil:
		return strings.Join(r.command.Args, " ")
	}
	return "this machine"
}

// examineName resolves the name of the machine. It returns no route if that fails, and no entry if
// the configuration was not read.
func (d *doctor) examineName(m *cli.Machine) (*route, *environments.Entry) {
	opts := client.Options{Name: "exec-server-doctor", TokenFile: m.TokenFile, ServerUser: m.ServerUser, RecoveryTimeout: -1, ConnectTimeout: doctorTimeout}
	switch {
	case m.URL != "":
		d.ok("name", "--url names the server at %s", cli.WithoutSecrets(m.URL))
		return &route{url: m.URL, opts: opts}, nil
	case m.On == cli.ThisMachine:
		d.ok("name", "--on local is this machine, without a server")
		return &route{opts: opts}, nil
	}
	if m.On == "" {
		if err := cli.RequireDefault(); err != nil {
			d.find("name", problem, cli.Advice(err), "%s", err)
			return nil, nil
		}
	}
	entry, err := environments.Find(m.On)
	if err != nil {
		mend := "correct the name, or add an entry: exec-server codex-config prints one"
		if errors.As(err, new(*environments.ConfigError)) {
			mend = "correct the file; Codex refuses it, too"
		} else if advice := cli.Advice(err); advice != "" {
			mend = advice
		}
		d.find("name", problem, mend, "%s", err)
		return nil, nil
	}
	found := &route{url: entry.URL, command: entry.Command, opts: opts}
	if entry.Options.ConnectTimeout > 0 {
		found.opts.ConnectTimeout = entry.Options.ConnectTimeout
	}
	found.opts.InitializeTimeout = entry.Options.InitializeTimeout
	found.opts.Token = entry.Token
	if found.opts.TokenFile == "" {
		found.opts.TokenFile = entry.Options.TokenFile
	}
	switch {
	case found.url != "":
		d.ok("name", "%s names the server at %s as %s", entry.Source, found, entry.Name)
	case found.command != nil:
		d.ok("name", "%s names the program %s as %s", entry.Source, found, entry.Name)
	default:
		d.ok("name", "%s is this machine, without a server", entry.Name)
	}
	return found, entry
}

// examineFile checks that others cannot change the configuration or read its token.
func (d *doctor) examineFile(entry *environments.Entry) {
	info, err := os.Stat(entry.Source)
	if err != nil || runtime.GOOS == "windows" { // it is a variable
		return
	}
	switch mode := info.Mode().Perm(); {
	case mode&0o022 != 0:
		d.find("file", problem, "chmod go-w "+entry.Source,
			"others can write %s, and so choose what you connect to or start", entry.Source)
	case mode&0o044 != 0 && entry.Token != "":
		d.find("file", warning, "chmod 600 "+entry.Source, "others can read %s, which has a token", entry.Source)
	}
}

// examineCodex checks how Codex uses the entry.
func (d *doctor) examineCodex(entry *environments.Entry) {
	if entry.URL == "" && entry.Command == nil || environments.IsMachine(entry.Name) {
		return // this machine, or one that Codex does not know by this name
	}
	if path, err := environments.File(); err != nil || entry.Source != path {
		return // it is a variable
	}
	if entry.LocalToo {
		d.find("fallback", warning, "write include_local = false above the first [[environments]], as \"exec-server codex-config add\" does",
			"when Codex has no link to %s, it may run commands on this machine instead", entry.Name)
	}
	if others := otherMachines(entry.Name); others != "" {
		d.find("fallback", warning, codexconf.OneFileEach, "when Codex has no link to %s, it uses %s instead", entry.Name, others)
	}
	if version := codexconf.OldVersion(d.ctx); version != "" {
		d.find("codex", warning, "install Codex "+codexconf.FirstVersion+" or newer", "the codex in PATH is %s, which ignores %s or refuses it", version, entry.Source)
	}
}

// otherMachines returns the names of the other machines of the configuration.
func otherMachines(name string) string {
	names, _, _ := environments.Names()
	names = slices.DeleteFunc(names, func(other string) bool { return other == name || other == cli.ThisMachine })
	return strings.Join(names, " or ")
}

// examineRoute checks the connection to a URL up to the handshake.
func (d *doctor) examineRoute(r *route) bool {
	if path, ok := strings.CutPrefix(r.url, "unix://"); ok {
		return d.examineSocket(path)
	}
	u, err := url.Parse(r.url)
	if err != nil || u.Scheme != "ws" && u.Scheme != "wss" || u.Hostname() == "" {
		d.find("name", problem, "use ws://HOST:PORT, wss://HOST:PORT or unix:///PATH", "%s is not the URL of a server", cli.WithoutSecrets(r.url))
		return false
	}
	r.u = u
	request := &http.Request{URL: &url.URL{Scheme: "http" + strings.TrimPrefix(u.Scheme, "ws"), Host: u.Host}}
	if r.proxy, err = http.ProxyFromEnvironment(request); err != nil {
		d.find("proxy", problem, "correct HTTP_PROXY or HTTPS_PROXY", "the proxy of the environment cannot be used: %s", err)
		return false
	}
	host, port := u.Hostname(), cli.Port(u)
	if r.proxy != nil {
		d.ok("proxy", "connections to %s go through the proxy %s", u.Host, r.proxy.Host)
		host, port = r.proxy.Hostname(), cli.Port(r.proxy)
	}
	addresses := d.examineHost(host)
	if addresses == nil {
		return false
	}
	conn := d.examineTCP(addresses, port, r)
	if conn == nil {
		return false
	}
	defer conn.Close()
	if u.Scheme == "wss" && r.proxy == nil && !d.examineTLS(conn, u.Hostname()) {
		return false
	}
	if ip := net.ParseIP(addresses[0]); u.Scheme == "ws" && (r.opts.Token != "" || r.opts.TokenFile != "") && !ip.IsLoopback() {
		d.find("tls", warning, "use wss://, or a tunnel of SSH", "anyone on the network path can read the token and all data, because ws:// has no TLS")
	}
	return d.examineToken(r)
}

// examineSocket checks a unix socket.
func (d *doctor) examineSocket(path string) bool {
	conn, err := net.DialTimeout("unix", path, doctorTimeout)
	if err == nil {
		_ = conn.Close()
		d.ok("socket", "%s accepts connections", path)
		return true
	}
	mend := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		mend = "start a server there: exec-server serve --listen unix://" + path
	case errors.Is(err, syscall.ECONNREFUSED):
		mend = "its server is gone; start one: exec-server serve --listen unix://" + path
	case errors.Is(err, fs.ErrPermission):
		mend = "use the account that the server runs as, or start it with --allow-uid"
	}
	d.find("socket", problem, mend, "cannot connect to %s: %s", path, sys.ErrorText(err))
	return false
}

// examineHost resolves a name. It returns nil if that fails.
func (d *doctor) examineHost(host string) []string {
	if net.ParseIP(host) != nil {
		return []string{host}
	}
	ctx, cancel := context.WithTimeout(d.ctx, doctorTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, host)
	if err == nil {
		d.ok("host", "%s is %s", host, strings.Join(addresses, ", "))
		return addresses
	}
	mend := "check the name server of this machine"
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		mend = "check the name, or add it to /etc/hosts"
	}
	d.find("host", problem, mend, "the name %s cannot be resolved: %s", host, err)
	return nil
}

// examineTCP connects to the first address that accepts. It returns nil if none does.
func (d *doctor) examineTCP(addresses []string, port string, r *route) net.Conn {
	var failed error
	for _, address := range addresses {
		ctx, cancel := context.WithTimeout(d.ctx, r.opts.ConnectTimeout/time.Duration(len(addresses)))
		began := time.Now()
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(address, port))
		cancel()
		if err == nil {
			d.ok("tcp", "%s accepts connections, after %s", conn.RemoteAddr(), time.Since(began).Round(100*time.Microsecond))
			return conn
		}
		failed = err
	}
	text, mend := sys.ErrorText(failed), "check the address, and the routes and firewalls on the way"
	switch {
	case r.proxy != nil:
		mend = "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
	case errors.Is(failed, syscall.ECONNREFUSED):
		mend = "start a server there: exec-server serve --listen ws://IP:" + port + ", with authentication beyond loopback"
	case errors.Is(failed, context.DeadlineExceeded) || errors.Is(failed, os.ErrDeadlineExceeded):
		text = "no answer"
	}
	d.find("tcp", problem, mend, "cannot connect to %s: %s", net.JoinHostPort(strings.Join(addresses, " or "), port), text)
	return nil
}

// soon is the remaining validity of a certificate below which doctor warns.
const soon = 14 * 24 * time.Hour

// examineTLS performs the TLS handshake like the client.
func (d *doctor) examineTLS(conn net.Conn, host string) bool {
	ctx, cancel := context.WithTimeout(d.ctx, doctorTimeout)
	defer cancel()
	secure := tls.Client(conn, &tls.Config{ServerName: host})
	err := secure.HandshakeContext(ctx)
	if err == nil {
		state := secure.ConnectionState()
		left := time.Until(state.PeerCertificates[0].NotAfter)
		if left < soon {
			d.find("tls", warning, "renew it", "the server's certificate expires in %s", cli.ShortDuration(left))
		} else {
			d.ok("tls", "%s, with a certificate that is valid for %s", tls.VersionName(state.Version), cli.ShortDuration(left))
		}
		return true
	}
	mend := ""
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, new(tls.RecordHeaderError)):
		d.find("tls", problem, "use ws:// for it, or start it with --tls-cert and --tls-key", "the server does not use TLS")
		return false
	case errors.As(err, &unknown):
		mend = "if it is the right one, name the certificate of its authority by SSL_CERT_FILE"
	case errors.As(err, &name):
		mend = "use a name that the certificate has, or a certificate for this one"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		mend = "renew the certificate of the server; if it is valid, set the clock of this machine"
	case errors.Is(err, context.DeadlineExceeded):
		mend = "check whether it is a server with TLS"
	}
	d.find("tls", problem, mend, "the handshake of TLS failed: %s", strings.TrimPrefix(err.Error(), "tls: "))
	return false
}

// examineToken checks the token file.
func (d *doctor) examineToken(r *route) bool {
	path := r.opts.TokenFile
	if path == "" {
		return true
	}
	text, err := os.ReadFile(path)
	switch {
	case err != nil:
		d.find("token", problem, "correct --token-file", "cannot read %s: %s", path, sys.ErrorText(err))
		return false
	case strings.TrimSpace(string(text)) == "":
		d.find("token", problem, "write the server's token into it", "%s is empty", path)
		return false
	}
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
		d.find("token", warning, "chmod 600 "+path, "others can read %s", path)
	}
	return true
}

// examineHandshake connects like every command. It returns nil if that fails.
func (d *doctor) examineHandshake(r *route) *client.Environment {
	began := time.Now()
	env, err := client.Dial(d.ctx, r.url, &r.opts)
	if err != nil {
		d.refused(r, err)
		return nil
	}
	took := time.Since(began).Round(100 * time.Microsecond)
	switch {
	case r.u == nil: // a unix socket has no token
	case r.opts.Token != "" || r.opts.TokenFile != "":
		d.ok("token", "the server accepts it")
	default:
		d.ok("token", "the server requires none")
	}
	d.ok("handshake", "an exec-server answers, after %s", took)
	return env
}

// refused explains a failed connection.
func (d *doctor) refused(r *route, err error) {
	dial, _ := errors.AsType[*client.DialError](err)
	if dial != nil {
		err = dial.Err
	}
	text := err.Error()
	said := text
	if answer, ok := errors.AsType[*transport.RefusedError](err); ok {
		said = answer.Text
	}
	switch {
	case cli.LacksMachine(said):
		d.find("handshake", problem, cli.ToList, "%s", text)
	case dial != nil && dial.Status == 401 && r.opts.Token == "" && r.opts.TokenFile == "":
		d.find("token", problem, "give the server's token with --token-file, or in environments.toml", "the server requires one: %s", said)
	case dial != nil && dial.Status == 401 && (strings.Contains(said, "expired") || strings.Contains(said, "not valid yet")):
		d.find("token", problem, "get a new one; if it is new, compare the clocks", "the server refuses it: %s", said)
	case dial != nil && dial.Status == 401:
		d.find("token", problem, "compare it with the one that the server was given", "the server refuses it: %s", said)
	case strings.Contains(text, "certificate required"):
		d.find("token", problem, "connect with a program that has one", "the server requires a client certificate")
	case dial != nil && dial.Status == 403:
		d.find("handshake", problem, "use the name or the account that the server's operator allows", "the server refuses this client: %s", said)
	case dial != nil && dial.Status == 407:
		d.find("proxy", problem, "give them in HTTP_PROXY or HTTPS_PROXY", "the proxy requires a user and a password")
	case strings.Contains(said, cli.SaysTLS) || strings.Contains(text, `malformed HTTP response "\x15\x03`):
		d.find("handshake", problem, "use wss:// for it", "the server speaks TLS")
	case strings.Contains(text, `malformed HTTP response "SSH-`):
		d.find("handshake", problem, `use an entry with program = "ssh"; exec-server codex-config USER@HOST prints one`, "this is a server for SSH")
	case dial != nil && dial.Status >= 500:
		d.find("handshake", problem, "look at the log of the server, or of the proxy before it", "%s", text)
	case dial != nil && dial.Status != 0, strings.Contains(text, "malformed HTTP response"):
		d.find("handshake", problem, "check the port and the path of the URL", "this is not an exec-server: %s", text)
	case errors.Is(err, context.DeadlineExceeded):
		d.find("handshake", problem, "check whether an exec-server is at this address, and look at its log", "no answer: %s", text)
	case errors.As(err, new(*protocol.Error)):
		d.find("handshake", problem, "look at the log of the server", "the server refuses a session: %s", text)
	default:
		d.find("handshake", problem, "check whether an exec-server is at this address, and look at its log", "%s", text)
	}
}

// sshRemedies lists remedies for messages of ssh before it ends with the code 255.
var sshRemedies = []struct{ text, mend string }{
	{"Could not resolve hostname", "check the name, or give it an entry in ~/.ssh/config"},
	{"Connection refused", "start the SSH server there, or correct the port"},
	{"timed out", "check the address, and the routes and firewalls on the way"},
	{"Host key verification failed", "connect once by hand, and compare the key: ssh asks for it"},
	{"REMOTE HOST IDENTIFICATION HAS CHANGED", "find out why; if it is right, ssh-keygen -R HOST"},
	{"Permission denied", "give ssh a key that needs no password, in the agent or with -i"},
}

// examineProgram starts the program that starts a server, and performs the handshake. It returns
// nil if that fails.
func (d *doctor) examineProgram(r *route) *client.Environment {
	name := r.command.Args[0]
	if r.command.Err != nil {
		d.find("program", problem, "install it, or give its path", "%s is not found: %s", name, r.command.Err)
		return nil
	}
	said := new(stderrTail)
	r.command.Stderr = said
	began := time.Now()
	env, err := client.Launch(d.ctx, r.command, &r.opts)
	if err == nil {
		d.ok("program", "%s starts", r.command.Path)
		if text := said.text(); text != "" {
			d.find("stderr", warning, "if it is not meant to, silence it", "it wrote: %s", text)
		}
		d.ok("handshake", "an exec-server answers, after %s", time.Since(began).Round(100*time.Microsecond))
		return env
	}
	state := r.command.ProcessState
	if state == nil {
		d.find("program", problem, "check its permissions, and the cwd of the entry", "%s does not start: %s", r.command.Path, sys.ErrorText(err))
		return nil
	}
	d.ok("program", "%s starts", r.command.Path)
	text := said.text()
	if text != "" {
		d.find("stderr", warning, "", "it wrote: %s", text)
	}
	mend := "run it by hand: " + strings.Join(r.command.Args, " ")
	switch code := state.ExitCode(); {
	case code == 255:
		for _, known := range sshRemedies {
			if strings.Contains(text, known.text) {
				mend = known.mend
				break
			}
		}
		d.find("handshake", problem, mend, "the program ended with the code 255, as ssh does when it cannot connect")
	case code == 127, code == 126:
		d.find("handshake", problem, "install exec-server there, in the PATH of a non-login shell, or give its path in the entry",
			"exec-server is not found there, or cannot be executed (code %d)", code)
	case errors.Is(err, context.DeadlineExceeded):
		d.find("handshake", problem, "check whether it starts an exec-server with --listen stdio; "+mend, "the program does not answer: %s", err)
	case code >= 0:
		d.find("handshake", problem, mend, "the program ended with the code %d before it answered", code)
	default:
		d.find("handshake", problem, mend, "%s", fmt.Sprint(err))
	}
	return nil
}
