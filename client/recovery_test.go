//go:build unix

package client_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// A server that closes each connection after the handshake is asked less and less often, and
// given up when Options.RecoveryTimeout is over: no connection to it has replaced the first.
func TestServerThatClosesAtOnce(t *testing.T) {
	t.Parallel()
	for name, capabilities := range map[string][]string{"acknowledging": {"processAck"}, "not": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var attempts atomic.Int64
			env := newFake(t, func(c *fakeConn) {
				attempts.Add(1)
				c.shake(capabilities...)
			}).dial(&client.Options{RecoveryTimeout: 3 * time.Second})
			testkit.Within(t, "giving up", func() { <-env.Done() })
			if err := env.Err(); !errors.As(err, new(*client.DisconnectedError)) {
				t.Errorf("the Environment failed with %v", err)
			}
			// The first connection, one at once, and those after at least 10, 20, 40 ... ms; on a
			// machine that stands still some more, or none.
			if n := attempts.Load(); n > 50 {
				t.Errorf("the client connected %d times in 3 seconds", n)
			}
		})
	}
}

// A request that breaks each connection does not make the client connect as fast as it can,
// although each connection also brings an answer: here, that to the reading of a process.
func TestRequestThatBreaksConnections(t *testing.T) {
	t.Parallel()
	began := time.Now()
	var attempts atomic.Int64
	env := newFake(t, func(c *fakeConn) {
		attempts.Add(1)
		for ok := c.shake("processAck"); ok; {
			var m fakeMessage
			m, ok = c.next()
			switch {
			case !ok || m.ID == nil:
			case m.Method == protocol.MethodReadFile:
				// Not at once, so that the other answer arrives.
				time.AfterFunc(3*time.Millisecond, func() { _ = c.conn.Close() })
			case m.Method == protocol.MethodRead:
				c.reply(m, object{"chunks": []object{}, "nextSeq": 1, "exited": false, "closed": false})
			default:
				c.reply(m, object{"processId": m.Params.ProcessID, "running": false})
			}
		}
	}).dial(nil)
	if err := env.Command(background(t), "idle").Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(background(t), time.Second)
	defer cancel()
	if _, err := env.FS("/").WithContext(ctx).ReadFile("large"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ReadFile: %v", err)
	}
	// The first connection, one at once, those after at least 10 and 20 ms, and the others
	// after at least 25 ms.
	n := attempts.Load()
	if spent := time.Since(began); n > 4+int64(spent/(25*time.Millisecond)) {
		t.Errorf("the client connected %d times in %v", n, spent)
	}
}
