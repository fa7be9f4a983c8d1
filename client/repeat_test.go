//go:build unix

package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// A start whose answer was lost is repeated, and starts nothing twice.
func TestStartIsRepeated(t *testing.T) {
	t.Parallel()
	for _, startID := range []bool{true, false} {
		t.Run(fmt.Sprintf("startId=%v", startID), func(t *testing.T) {
			t.Parallel()
			var capabilities []string
			if startID {
				capabilities = append(capabilities, "startId")
			}
			started := make(chan fakeMessage, 1)
			f := newFake(t,
				func(c *fakeConn) {
					if c.shake(capabilities...) {
						m, _ := c.expect("process/start")
						started <- m
					}
				},
				func(c *fakeConn) {
					if !c.shake(capabilities...) {
						return
					}
					for {
						m, ok := c.next()
						switch {
						case !ok:
							return
						case m.Method == "process/start" && startID:
							first := <-started
							if m.Params.StartID == nil || *m.Params.StartID != *first.Params.StartID || m.Params.ProcessID != first.Params.ProcessID {
								t.Errorf("repeated as %+v, first was %+v", m, first)
							}
							c.reply(m, object{"processId": m.Params.ProcessID})
							c.exited("1", 1, 0)
							c.closed("1", 2)
						case m.Method == "process/start":
							c.refuse(m, protocol.CodeInvalidRequest, "process 1 already exists")
						case m.Method == "process/read":
							c.reply(m, object{"chunks": []object{}, "nextSeq": 3, "exited": true, "exitCode": 0, "closed": true, "failure": nil})
						case m.Method == "process/terminate": // when closed is still on its way
							c.reply(m, object{"running": false})
						default:
							t.Errorf("%s", m.Method)
						}
					}
				})
			testkit.Within(t, "Run", func() {
				if err := child(f.dial(nil), "x").Run(); err != nil {
					t.Errorf("Run: %v", err)
				}
			})
		})
	}
}

// An id that somebody else has is not taken for ours.
func TestStartIsRefused(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(c *fakeConn) {
		if !c.shake() {
			return
		}
		if m, ok := c.expect("process/start"); ok {
			c.refuse(m, protocol.CodeInvalidRequest, "process 1 already exists")
		}
		c.drain()
	})
	err := child(f.dial(nil), "x").Run()
	if !errors.As(err, new(*client.StartError)) || !errors.Is(err, protocol.ErrInvalidRequest) {
		t.Errorf("Run: %v", err)
	}
}

// A process whose start nobody waits for any more is ended.
func TestStartIsAbandoned(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	terminated := make(chan string, 1)
	f := newFake(t, func(c *fakeConn) {
		if !c.shake() {
			return
		}
		c.expect("process/start")
		cancel()
		if m, ok := c.expect("process/terminate"); ok {
			terminated <- m.Params.ProcessID
			c.reply(m, object{"running": true})
		}
		c.drain()
	})
	env := f.dial(nil)
	if err := childContext(ctx, env, "x").Run(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	testkit.Within(t, "terminate", func() {
		if id := <-terminated; id != "1" {
			t.Errorf("terminated %q", id)
		}
	})
}

// Writes are repeated with their id, signals are not. A server that does not take
// acknowledgements gets none.
func TestWhatIsRepeated(t *testing.T) {
	t.Parallel()
	writes := make(chan string, 10)
	one := func(c *fakeConn) {
		if !c.shake("processSignals") {
			return
		}
		c.start()
		c.output("1", 1, "x")
		for range 2 {
			if m, ok := c.expect("process/write"); ok {
				writes <- m.Params.WriteID + " " + string(m.Params.Chunk)
				if string(m.Params.Chunk) == "a" {
					c.reply(m, object{"status": "accepted"})
				}
			}
		}
	}
	two := func(c *fakeConn) {
		if !c.shake("processSignals") {
			return
		}
		for {
			m, ok := c.next()
			switch {
			case !ok:
				return
			case m.Method == "process/write":
				writes <- m.Params.WriteID + " " + string(m.Params.Chunk)
				c.reply(m, object{"status": "accepted"})
			case m.Method == "process/signal":
				return // and break the connection
			case m.Method == "process/terminate":
				c.reply(m, object{"running": true})
				c.exited("1", 2, 137)
				c.closed("1", 3)
			case m.Method == "process/read":
				c.reply(m, object{"chunks": []object{}, "nextSeq": 2, "exited": false, "closed": false, "failure": nil})
			default:
				t.Errorf("%s", m.Method)
			}
		}
	}
	env := newFake(t, one, two).dial(nil)
	c := child(env, "x")
	if _, err := c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, "writing", func() {
		for _, text := range []string{"a", "b"} {
			if err := c.Write(background(t), []byte(text)); err != nil {
				t.Error(err)
			}
		}
	})
	for _, want := range []string{"1 a", "2 b", "2 b"} {
		if got := <-writes; got != want {
			t.Errorf("write %q, want %q", got, want)
		}
	}
	err := c.Signal(background(t), os.Interrupt)
	if !errors.As(err, new(*client.InterruptedError)) || errors.As(err, new(*client.DisconnectedError)) || env.Err() != nil {
		t.Errorf("Signal: %v; the Environment: %v", err, env.Err())
	}
	if err := c.Terminate(background(t), 0); err != nil {
		t.Error(err)
	}
	_ = c.Wait()
}
