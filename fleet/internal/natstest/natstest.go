// Package natstest runs NATS servers for tests.
package natstest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"execserver/internal/testkit"
)

// Serve runs a server on a free port of loopback, which ends with the test. change, if not
// nil, may change its options.
func Serve(t testing.TB, change func(*server.Options)) *server.Server {
	t.Helper()
	opts := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, AuthTimeout: testkit.Patience.Seconds()}
	if change != nil {
		change(opts)
	}
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(testkit.Patience) {
		t.Fatal("the NATS server does not start")
	}
	return s
}

// At makes a server listen at an address, as that of testkit.FreeAddress.
func At(t testing.TB, address string) (change func(*server.Options)) {
	t.Helper()
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *server.Options) { o.Port = int(at.Port()) }
}

// Connect connects to a server until the test ends.
func Connect(t testing.TB, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	opts = append([]nats.Option{nats.FlusherTimeout(5 * time.Second), nats.Timeout(testkit.Patience), nats.ReconnectWait(50 * time.Millisecond), nats.MaxReconnects(-1)}, opts...)
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}
