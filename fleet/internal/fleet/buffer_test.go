//go:build unix

package fleet_test

import (
	"errors"
	"fmt"
	"testing"

	"execserver/fleet/internal/fleet"
	"execserver/fleet/natstransport"
	"execserver/internal/testkit"
	"execserver/transport"
)

// TestLargeMessages has a machine that does not read, and clients that send it large
// messages. The gateway holds so many bytes of them and no more: one more client loses its
// connection and learns why, and the clients of others go on.
func TestLargeMessages(t *testing.T) {
	const limit, size = 32 << 20, 3 << 20 // two for a principal
	s := newSite(t, everyName, clientEntry("ann", `scope = ["full"]`)+clientEntry("bob", `scope = ["full"]`), nil)
	s.gateway.LimitHeld(limit)
	read := make(chan struct{})
	nc, err := s.connect(t, "any", "box")
	if err != nil {
		t.Fatal(err)
	}
	m, err := fleet.Join(t.Context(), nc, fleet.Member{Name: "box"}, fleet.JoinOptions{
		Serve: func(c *natstransport.Conn) {
			if _, err := c.Read(nil); err != nil {
				return
			}
			<-read
			for {
				msg, err := c.Read(nil)
				if err != nil || c.Write(fmt.Append(nil, len(msg))) != nil {
					return
				}
			}
		},
		Load: func() fleet.Load { return fleet.Load{} }, Drain: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	s.listedFor(t, clientToken("ann"), 1)
	large := make([]byte, size)
	send := func(token string) transport.Conn {
		t.Helper()
		conn, err := s.rawDial(t, "/env/box", token)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = conn.Write([]byte("hello"), large) }() // a Read notices the end
		return conn
	}
	held := func(from, to int64) {
		t.Helper()
		testkit.WaitFor(t, testkit.Patience, func() error {
			if n := s.gateway.Counts().Held; n < from || n > to {
				return fmt.Errorf("the gateway holds %d bytes, want %d to %d", n, from, to)
			}
			return nil
		})
	}
	waiting := []transport.Conn{send("ann"), send("ann")}
	held(2*(size-256<<10), limit/4)
	more := send("ann")
	testkit.Within(t, "the end of one more connection", func() { _, err = more.Read(nil) })
	if peer, ok := errors.AsType[*transport.PeerClosedError](err); !ok || peer.Reason.Code != transport.CodeTryAgainLater {
		t.Errorf("one more message: %v", err)
	}
	waiting = append(waiting, send("bob"))
	held(3*(size-256<<10), limit/2)
	close(read)
	for _, conn := range waiting {
		if msg, err := conn.Read(nil); err != nil || string(msg) != fmt.Sprint(size) {
			t.Errorf("%q, %v", msg, err)
		}
	}
	held(0, 0)
	if msg, err := send("ann").Read(nil); err != nil || string(msg) != fmt.Sprint(size) {
		t.Errorf("afterwards: %q, %v", msg, err)
	}
}
