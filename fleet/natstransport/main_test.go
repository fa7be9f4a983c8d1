//go:build unix

package natstransport_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"

	"execserver/fleet/internal/natstest"
	"execserver/fleet/natstransport"
	"execserver/internal/testkit"
	"execserver/server"
)

func TestMain(m *testing.M) {
	server.RunHelper() // the transcripts start servers, which confine commands
	testkit.DefaultSignals()
	testkit.VerifyMain(testkit.Ledger(m))
}

// pair is a machine and a dialer, and what is between them.
type pair struct {
	listener *natstransport.Listener
	dialer   *natstransport.Dialer
	ofBox    *nats.Conn
	ofDialer *nats.Conn
}

// newPair returns a machine "box" and a dialer, connected to the NATS servers at two URLs.
func newPair(t testing.TB, boxURL, dialerURL string, opts *natstransport.Options) pair {
	t.Helper()
	p := pair{ofBox: natstest.Connect(t, boxURL), ofDialer: natstest.Connect(t, dialerURL)}
	var machine natstransport.Options
	if opts != nil {
		machine = *opts
	}
	if machine.Instance == "" {
		machine.Instance = "first"
	}
	var err error
	if p.listener, err = natstransport.Listen(p.ofBox, "box", &machine); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.listener.Close)
	p.dialer = natstransport.NewDialer(p.ofDialer, opts)
	t.Cleanup(p.dialer.Close)
	return p
}

// connect returns both ends of a new connection.
func (p pair) connect(t testing.TB, hello []byte) (far, near *natstransport.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	far, err := p.dialer.Dial(ctx, "box", natstransport.Call{Remote: "a test", Hello: hello})
	if err != nil {
		t.Fatal(err)
	}
	near, err = p.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return far, near
}
