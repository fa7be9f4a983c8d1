//go:build unix

package transport_test

import (
	"context"
	"testing"

	"execserver/internal/testkit/natstest"
	"execserver/transport"
	"execserver/transport/natstransport"
)

// connectNATS returns a connection through a NATS server of its own. Its far end is this
// package's, too, because nothing else speaks its protocol.
func connectNATS(t testing.TB, limit int64) (transport.Conn, far) {
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
	return ends(t, near, farNATS{end})
}

type farNATS struct{ conn *natstransport.Conn }

func (f farNATS) send(msg []byte) error    { return f.conn.Write(msg) }
func (f farNATS) receive() ([]byte, error) { return f.conn.Read(nil) }
func (f farNATS) close()                   { _ = f.conn.Close(transport.Reason{Text: "bye"}) }
