//go:build unix

package natsclient_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"execserver/client"
	"execserver/fleet/internal/natstest"
	"execserver/fleet/natsclient"
	"execserver/fleet/natstransport"
	"execserver/internal/testkit"
	"execserver/server"
)

func TestMain(m *testing.M) {
	testkit.Main()
	// The threads that start children live as long as the program.
	testkit.VerifyMain(testkit.Ledger(m, "socket:", "socket:"))
}

// serve makes this program the machine "box" at a NATS server, until the test ends.
func serve(t testing.TB, at string, opts ...nats.Option) {
	t.Helper()
	srv := server.New(&server.Options{Auth: server.Unauthenticated})
	listener, err := natstransport.Listen(natstest.Connect(t, at, opts...), "box", nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _ = srv.ServeFor(conn, conn.Hello()) }() // ends with the server
		}
	}()
	t.Cleanup(func() {
		testkit.Shutdown(t, srv)
		listener.Close()
		<-done
	})
}

// dial dials the machine "box".
func dial(t testing.TB, at string, opts ...nats.Option) *client.Environment {
	t.Helper()
	env, err := natsclient.Dial(t.Context(), at+"/box", &natsclient.Options{NATS: opts}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Close() })
	return env
}

func hostname(t testing.TB, env *client.Environment) {
	t.Helper()
	if out, err := env.Command(t.Context(), "echo", "here").Output(); err != nil || string(out) != "here\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// TestStreamThroughRestarts restarts the NATS server while a process streams. Every byte
// arrives once, and the true ending.
func TestStreamThroughRestarts(t *testing.T) {
	address := natstest.At(t, testkit.FreeAddress(t))
	nats := natstest.Serve(t, address)
	serve(t, nats.ClientURL())
	env := dial(t, nats.ClientURL())
	const size, restarts = 24 << 20, 3
	argv, vars := testkit.Child("pattern", strconv.Itoa(size))
	cmd := env.Command(t.Context(), argv[0], argv[1:]...)
	for name, value := range vars {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	want := testkit.Pattern(size)
	part := make([]byte, size/(restarts+1))
	for i := range restarts + 1 {
		if _, err := io.ReadFull(out, part); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(part, want[i*len(part):(i+1)*len(part)]) {
			t.Fatalf("part %d is not what the process wrote", i)
		}
		if i < restarts {
			nats.Shutdown()
			nats.WaitForShutdown()
			nats = natstest.Serve(t, address)
		}
	}
	if more, err := io.ReadAll(out); len(more) > 0 || err != nil {
		t.Errorf("%d bytes too many, %v", len(more), err)
	}
	err = cmd.Wait()
	exit, ok := errors.AsType[*client.ExitError](err)
	if !ok || exit.ExitCode != 9 {
		t.Errorf("the end: %v", err)
	}
}

// TestOtherServerOfCluster stops the server that the URL names. The session goes on through
// the other one, whose certificate is for the same name, and which is known by its address.
func TestOtherServerOfCluster(t *testing.T) {
	authority := testkit.NewAuthority(t, "ours")
	pair, err := tls.LoadX509KeyPair(authority.ServerWith(func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"localhost"} }))
	if err != nil {
		t.Fatal(err)
	}
	cluster := func(o *natsserver.Options) {
		o.TLSConfig, o.TLSTimeout = &tls.Config{Certificates: []tls.Certificate{pair}}, testkit.Patience.Seconds()
		o.Cluster = natsserver.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: natsserver.RANDOM_PORT}
	}
	first := natstest.Serve(t, cluster)
	second := natstest.Serve(t, func(o *natsserver.Options) {
		cluster(o)
		route := &url.URL{Scheme: "nats", Host: first.ClusterAddr().String()}
		o.Routes = []*url.URL{route}
	})
	testkit.WaitFor(t, testkit.Patience, func() error {
		if first.NumRoutes() == 0 || second.NumRoutes() == 0 {
			return errors.New("the servers are no cluster yet")
		}
		return nil
	})
	at := func(s *natsserver.Server) string {
		return fmt.Sprint("tls://localhost:", netip.MustParseAddrPort(s.Addr().String()).Port())
	}
	trust := nats.RootCAs(authority.File)
	serve(t, at(second), trust)
	var env *client.Environment
	testkit.WaitFor(t, testkit.Patience, func() (err error) { // the first has to learn what the second has
		env, err = natsclient.Dial(t.Context(), at(first)+"/box", &natsclient.Options{NATS: []nats.Option{trust}}, nil)
		return err
	})
	t.Cleanup(func() { _ = env.Close() })
	hostname(t, env)
	session := env.Session()
	first.Shutdown()
	hostname(t, env)
	if env.Session() != session {
		t.Error("the session is another one")
	}
}

func TestSchemes(t *testing.T) {
	authority := testkit.NewAuthority(t, "ours")
	pair, err := tls.LoadX509KeyPair(authority.Server())
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}}
	secure := natstest.Serve(t, func(o *natsserver.Options) {
		o.TLSConfig = config.Clone()
		o.TLSTimeout = testkit.Patience.Seconds()
		o.Websocket = natsserver.WebsocketOpts{Host: "127.0.0.1", Port: -1, TLSConfig: config.Clone()}
	})
	open := natstest.Serve(t, func(o *natsserver.Options) {
		o.Websocket = natsserver.WebsocketOpts{Host: "127.0.0.1", Port: -1, NoTLS: true}
	})
	trust := nats.RootCAs(authority.File)
	serve(t, secure.ClientURL(), trust)
	serve(t, open.ClientURL())
	for at, opts := range map[string][]nats.Option{
		"nats://" + open.Addr().String():   nil,
		"nats+" + open.WebsocketURL():      nil,
		"nats://" + secure.Addr().String(): {trust},
		"tls://" + secure.Addr().String():  {trust},
		"nats+" + secure.WebsocketURL():    {trust},
	} {
		t.Run(at[:strings.Index(at, ":")], func(t *testing.T) { hostname(t, dial(t, at, opts...)) })
	}
	for _, at := range []string{"tls://" + open.Addr().String(), "tls://" + secure.Addr().String(), "nats+" + secure.WebsocketURL()} {
		if env, err := natsclient.Dial(t.Context(), at+"/box", nil, nil); err == nil {
			_ = env.Close()
			t.Errorf("%s: a server without TLS, or of an unknown authority, is accepted", at)
		}
	}
}

func TestInvalidURLs(t *testing.T) {
	for at, want := range map[string]string{
		"nats://h:4222":                  "names no machine",
		"nats://h:4222/":                 "expected its name at the end, nats://h:4222/NAME",
		"nats://h:4222/a/b":              `"a/b"`,
		"nats://h:4222/a.b":              `"a.b"`,
		"nats://ann:hidden@h:4222/box":   "must not have a user, a token or a password",
		"nats://hidden@h:4222/box":       "must not have a user, a token or a password",
		"nats+wss://ann:hidden@h/box":    "must not have a user, a token or a password",
		"nats://h:4222/box?token=hidden": "invalid URL",
		"nats:///box":                    "invalid URL",
		"ws://h:4222/box":                "expected nats://HOST:PORT/NAME, tls://HOST:PORT/NAME or nats+wss://HOST:PORT/NAME",
		"nats://h:port-hidden/box":       "invalid URL",
	} {
		_, err := natsclient.Dial(t.Context(), at, nil, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", at, err)
		}
	}
}

func TestNoSuchMachine(t *testing.T) {
	at := natstest.Serve(t, nil).ClientURL()
	serve(t, at)
	_, err := natsclient.Dial(t.Context(), at+"/bax", nil, nil)
	failed, ok := errors.AsType[*client.DialError](err)
	if !ok || failed.URL != at+"/bax" || !errors.Is(err, natstransport.ErrNoMachine) {
		t.Errorf("%v", err)
	}
}

// TestNothingStays looks at the connections of the NATS server after an Environment was
// closed, and after none came about.
func TestNothingStays(t *testing.T) {
	s := natstest.Serve(t, nil)
	serve(t, s.ClientURL())
	machine := s.NumClients()
	_ = dial(t, s.ClientURL()).Close()
	if _, err := natsclient.Dial(t.Context(), s.ClientURL()+"/bax", nil, nil); err == nil {
		t.Error("there is no such machine")
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if now := s.NumClients(); now != machine {
			return fmt.Errorf("%d connections to NATS", now)
		}
		return nil
	})
}

// TestCredentials has users who may reach machines, may not, and are unknown.
func TestCredentials(t *testing.T) {
	allow := func(subjects ...string) *natsserver.SubjectPermission {
		return &natsserver.SubjectPermission{Allow: subjects}
	}
	s := natstest.Serve(t, func(o *natsserver.Options) {
		o.Users = []*natsserver.User{
			{Username: "machine", Password: "m"},
			{Username: "ann", Password: "a", Permissions: &natsserver.Permissions{
				Publish: allow("exec.open.box", "exec.in.box.>"), Subscribe: allow("exec.out.box.>", "_INBOX.>"),
			}},
			{Username: "deaf", Password: "d", Permissions: &natsserver.Permissions{
				Publish: allow("exec.open.*", "exec.in.>"), Subscribe: allow("_INBOX.>"),
			}},
			{Username: "mute", Password: "m", Permissions: &natsserver.Permissions{
				Publish: allow("nothing"), Subscribe: allow("exec.out.box.>", "_INBOX.>"),
			}},
		}
	})
	at := "nats://" + s.Addr().String()
	serve(t, at, nats.UserInfo("machine", "m"))
	hostname(t, dial(t, at, nats.UserInfo("ann", "a")))
	for _, row := range []struct{ user, password, want string }{
		{"ann", "wrong", ""},
		{"nobody", "n", ""},
		{"deaf", "d", "permissions violation for subscription"},
		{"mute", "m", "permissions violation for publish"},
	} {
		_, err := natsclient.Dial(t.Context(), at+"/box", &natsclient.Options{NATS: []nats.Option{nats.UserInfo(row.user, row.password)}}, nil)
		if !errors.Is(err, natsclient.ErrRefused) || !strings.Contains(strings.ToLower(err.Error()), row.want) {
			t.Errorf("%s: %v", row.user, err)
		}
	}
}

// TestContextBoundsDialing dials what accepts connections and stays silent.
func TestContextBoundsDialing(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // ends with the listener
		if conn, err := silent.Accept(); err == nil {
			cancel()
			defer conn.Close()
			_, _ = conn.Read(make([]byte, 1)) // until Dial hangs up
		}
	}()
	patient := &natsclient.Options{NATS: []nats.Option{nats.Timeout(time.Hour)}}
	testkit.Within(t, "the end of Dial", func() {
		if _, err := natsclient.Dial(ctx, "nats://"+silent.Addr().String()+"/box", patient, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}

// TestPrincipals has two clients of one machine that do not see each other's sessions.
func TestPrincipals(t *testing.T) {
	at := natstest.Serve(t, nil).ClientURL()
	serve(t, at)
	as := func(principal, session string) (*client.Environment, error) {
		env, err := natsclient.Dial(t.Context(), at+"/box", &natsclient.Options{Principal: principal}, &client.Options{Session: session})
		if err == nil {
			t.Cleanup(func() { _ = env.Close() })
		}
		return env, err
	}
	first, err := as("ann", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Command(t.Context(), "sleep", "1000").Start(); err != nil {
		t.Fatal(err)
	}
	session := first.Session()
	if err := first.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := as("bob", session); !errors.Is(err, client.ErrUnknownSession) {
		t.Errorf("another client resumes the session: %v", err)
	}
	if _, err := as("ann", session); err != nil {
		t.Errorf("its own client does not resume it: %v", err)
	}
}
