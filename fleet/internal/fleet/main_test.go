//go:build unix

package fleet_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/fleet/internal/broker"
	"execserver/fleet/internal/fleet"
	"execserver/fleet/natstransport"
	"execserver/internal/auth"
	"execserver/internal/extension"
	"execserver/internal/testkit"
	"execserver/server"
)

func TestMain(m *testing.M) {
	testkit.Main()
	// The threads that start children live as long as the program. A NATS server may still
	// have a file of its store open after its end, until its memory is collected.
	store := filepath.Join(os.TempDir(), "Test")
	// One that ends while it creates a stream leaves two goroutines of the stream's store.
	const library = "github.com/nats-io/nats-server/v2/server"
	testkit.VerifyMain(testkit.Ledger(m, "socket:", "socket:", store, store, store),
		library+".(*fileStore).flushStreamStateLoop", library+"/ats.Register.func1")
}

// site is a gateway with its NATS server and its door, all in this program.
type site struct {
	broker     *broker.Broker
	known      *broker.Machines
	machines   string // the file of known
	gateway    *fleet.Gateway
	url        string // for clients: ws://HOST:PORT
	retained   int64  // bytes of output that the machines retain for a process; 0 for the default
	http       string // the same: http://HOST:PORT
	door       *server.Server
	auth       *server.Authenticator
	tokens     string // the file of auth
	registries map[string]*fleet.Registry
}

// The tokens of machines and clients are "machine-token-of-NAME" and "client-token-of-NAME".
func machineToken(name string) string { return "machine-token-of-" + name }
func clientToken(name string) string  { return "client-token-of-" + name }

// machineEntry is a [[machine]].
func machineEntry(token, account, name string) string {
	return fmt.Sprintf("[[machine]]\nname = %q\naccount = %q\nsha256 = \"%x\"\n", name, account, sha256.Sum256([]byte(machineToken(token))))
}

// clientEntry is a [[token]].
func clientEntry(name, rest string) string {
	return fmt.Sprintf("[[token]]\nname = %q\nsha256 = \"%x\"\n%s\n", name, sha256.Sum256([]byte(clientToken(name))), rest)
}

func testLog(t testing.TB) *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

// newSite starts a gateway for machines and clients of these files. "" admits every client. No
// wait for a machine ends before the machine has answered, or has left.
func newSite(t testing.TB, machines, clients string, change func(*broker.Options)) *site {
	t.Helper()
	return newSiteThatWaits(t, machines, clients, change, fleet.Waits{})
}

func newSiteThatWaits(t testing.TB, machines, clients string, change func(*broker.Options), timeouts fleet.Waits) *site {
	t.Helper()
	timeouts.Patience = testkit.Patience
	log := testLog(t)
	file := testkit.Secret(t, machines)
	known, err := broker.ReadMachines(file)
	if err != nil {
		t.Fatal(err)
	}
	opts := broker.Options{
		Data: t.TempDir(), Listen: []string{"nats://127.0.0.1:0", "ws://127.0.0.1:0"},
		Machines: known, Accounts: known.Accounts(), Log: log, SignIn: testkit.Patience,
	}
	if change != nil {
		change(&opts)
	}
	s := &site{known: known, machines: file, gateway: fleet.NewGateway(log), registries: make(map[string]*fleet.Registry)}
	if s.broker, err = broker.New(opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.broker.Close)
	replicas := 1
	if opts.ClusterListen != "" {
		replicas = 3
	}
	for _, account := range known.Accounts() {
		nc := s.asGateway(t, account)
		registry, err := fleet.NewRegistryWithTimeouts(nc, replicas, log, &natstransport.Options{Lost: s.gateway.Lost}, timeouts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(registry.Close)
		s.gateway.Add(account, registry)
		s.registries[account] = registry
	}
	authenticator := server.Unauthenticated
	if clients != "" {
		s.tokens = testkit.Secret(t, clients)
		authenticator, err = server.NewAuthenticator(server.AuthConfig{TokensFile: s.tokens, Gateway: true})
		if err != nil {
			t.Fatal(err)
		}
	}
	door := server.New(&server.Options{Log: log, Auth: authenticator, Extensions: &extension.Options{Gateway: s.gateway}})
	web := httptest.NewServer(door.Handler())
	t.Cleanup(func() {
		s.gateway.Close()
		testkit.Within(t, "the end of the door", func() { _ = door.Shutdown(context.Background()) })
		web.Close()
	})
	s.door, s.auth = door, authenticator
	s.http = web.URL
	s.url = "ws" + strings.TrimPrefix(web.URL, "http")
	return s
}

// machine is a server that has joined.
type machine struct {
	*fleet.Membership
	server *server.Server
	nc     *nats.Conn
}

// connect connects to NATS as a machine of a name.
func (s *site) connect(t testing.TB, token, name string, more ...nats.Option) (*nats.Conn, error) {
	t.Helper()
	nc, err := nats.Connect(s.broker.URL(), append(more, nats.UserInfo(name, machineToken(token)), nats.CustomInboxPrefix(fleet.InboxPrefix(name)),
		nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.FlusherTimeout(5*time.Second), nats.Timeout(testkit.Patience), nats.PermissionErrOnSubscribe(true), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	if err == nil {
		t.Cleanup(nc.Close)
	}
	return nc, err
}

// tryJoin makes a server join.
func (s *site) tryJoin(t testing.TB, ctx context.Context, token, name string, labels ...string) (*machine, error) {
	t.Helper()
	nc, err := s.connect(t, token, name)
	if err != nil {
		return nil, err
	}
	return s.joinOver(t, ctx, nc, testLog(t), name, labels...)
}

// joinOver makes a server join over a connection to NATS.
func (s *site) joinOver(t testing.TB, ctx context.Context, nc *nats.Conn, log *slog.Logger, name string, labels ...string) (*machine, error) {
	t.Helper()
	srv := server.New(&server.Options{
		Log: testLog(t), Auth: server.Unauthenticated, Session: server.SessionOptions{RetainedBytes: s.retained},
	})
	parsed, err := fleet.ParseLabels(labels)
	if err != nil {
		t.Fatal(err)
	}
	membership, err := fleet.Join(ctx, nc, fleet.Member{Name: name, Host: "host-of-" + name, Labels: parsed}, fleet.JoinOptions{
		Log:       log,
		Heartbeat: 200 * time.Millisecond,
		Serve:     func(c *natstransport.Conn) { _ = srv.ServeFor(c, c.Hello()) },
		Load: func() fleet.Load {
			stats := srv.Stats()
			return fleet.Load{Sessions: stats.SessionsAttached + stats.SessionsDetached, Capacity: 10, Draining: srv.Draining()}
		},
		Drain: func() { srv.Drain() },
	})
	end := func() { testkit.Within(t, "the end of "+name, func() { _ = srv.Shutdown(context.Background()) }) }
	if err != nil {
		end()
		return nil, err
	}
	membership.LeaveWithin(testkit.Patience)
	t.Cleanup(func() {
		end()
		membership.Close()
	})
	return &machine{membership, srv, nc}, nil
}

func (s *site) join(t testing.TB, token, name string, labels ...string) *machine {
	t.Helper()
	m, err := s.tryJoin(t, t.Context(), token, name, labels...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// revokeMachines makes the file of machines empty.
func (s *site) revokeMachines(t testing.TB) {
	t.Helper()
	if err := os.WriteFile(s.machines, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := s.known.Refresh(); !changed || err != nil {
		t.Fatalf("%v %v", changed, err)
	}
	s.broker.Recheck()
}

// changeClients replaces the tokens of clients.
func (s *site) changeClients(t testing.TB, clients string) {
	t.Helper()
	if err := os.WriteFile(s.tokens, []byte(clients), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := s.auth.Refresh(); !changed || err != nil {
		t.Fatalf("%v %v", changed, err)
	}
	s.door.Recheck()
}

func nobody(*auth.Principal) bool { return false }
