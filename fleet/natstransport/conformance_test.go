//go:build unix

package natstransport_test

import (
	"context"
	"testing"

	"execserver/fleet/internal/natstest"
	"execserver/fleet/natstransport"
	"execserver/internal/testkit/transporttest"
	"execserver/transport"
)

// TestConformance runs the tests that every transport passes.
func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Kind{Name: "nats", Connect: connectNATS, Blank: true})
}

// connectNATS returns a connection through a NATS server of its own. Its far end is this
// package's, too, because nothing else speaks its protocol.
func connectNATS(t testing.TB, limit int64) (transport.Conn, transporttest.Far) {
	url := natstest.Serve(t, nil).ClientURL()
	listener, err := natstransport.Listen(natstest.Connect(t, url), "box", &natstransport.Options{MaxMessageBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(listener.Close)
	dialer := natstransport.NewDialer(natstest.Connect(t, url), nil)
	t.Cleanup(dialer.Close)
	end, err := dialer.Dial(context.Background(), "box", natstransport.Call{Remote: "a test"})
	if err != nil {
		t.Fatal(err)
	}
	near, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return transporttest.Ends(t, near, farNATS{end})
}

type farNATS struct{ conn *natstransport.Conn }

func (f farNATS) Send(msg []byte) error    { return f.conn.Write(msg) }
func (f farNATS) Receive() ([]byte, error) { return f.conn.Read(nil) }
func (f farNATS) Close()                   { _ = f.conn.Close(transport.Reason{Text: "bye"}) }
