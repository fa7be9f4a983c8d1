package rpc_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/rpc"
	"execserver/transport"
)

const interval = 15 * time.Second // the default

var goodbye = transport.Reason{Code: transport.CodeNormal, Text: "goodbye"}

func ended(c *running) bool { return c.Context().Err() != nil }

func TestHeartbeat(t *testing.T) {
	for _, test := range []struct {
		name string
		peer func(peer *client, p *pinging, tick int) // runs just after every ping
		ends int                                      // the tick that ends the connection after three pings in vain, 0 for none
	}{
		{name: "never answers", peer: func(*client, *pinging, int) {}},
		{name: "always answers", peer: func(_ *client, p *pinging, _ int) { p.onPong(0) }},
		{name: "answers once", ends: 5, peer: func(_ *client, p *pinging, tick int) {
			if tick == 1 {
				p.onPong(0)
			}
		}},
		{name: "answers for a while", ends: 14, peer: func(_ *client, p *pinging, tick int) {
			if tick <= 10 {
				p.onPong(0)
			}
		}},
		{name: "answers one in three", peer: func(_ *client, p *pinging, tick int) {
			if tick%3 == 1 {
				p.onPong(0)
			}
		}},
		{name: "sends instead", peer: func(peer *client, p *pinging, tick int) {
			if tick == 1 {
				p.onPong(0)
			} else {
				peer.send(`{"method":"fine"}`)
			}
		}},
		{name: "sends nonsense", peer: func(peer *client, p *pinging, tick int) {
			if tick == 1 {
				p.onPong(0)
			} else {
				peer.send(`nonsense`)
				peer.next()
			}
		}},
		{name: "sends a message without end", peer: func(_ *client, p *pinging, tick int) {
			if tick == 1 {
				p.onPong(0)
			} else {
				p.received.Add(1)
			}
		}},
		{name: "stops in the middle of a message", ends: 14, peer: func(_ *client, p *pinging, tick int) {
			if tick == 1 {
				p.onPong(0)
			} else if tick <= 10 {
				p.received.Add(1)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log logs
				c, peer, p := serveWithPings(t, handler{}, &rpc.Options{Log: log.logger()})
				for tick := 1; tick <= 40; tick++ {
					time.Sleep(interval)
					synctest.Wait()
					if tick == test.ends {
						if err := c.wait(t); !errors.Is(err, rpc.ErrSilent) {
							t.Errorf("Run: %v", err)
						}
						if n := len(p.seen()); n != 0 || !strings.Contains(log.String(), rpc.ErrSilent.Error()) {
							t.Errorf("%d more pings; log: %s", n, log.String())
						}
						return
					}
					if ended(c) {
						t.Fatalf("ended at tick %d: %v", tick, context.Cause(c.Context()))
					}
					if n := len(p.seen()); n != 1 {
						t.Fatalf("%d pings at tick %d", n, tick)
					}
					test.peer(peer, p, tick)
				}
			})
		})
	}
}

// TestSilenceOfOurs does not blame the peer for pongs that nobody reads.
func TestSilenceOfOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held []*rpc.Request
		h := handler{"hold": func(r *rpc.Request) { held = append(held, r) }, "echo": echo}
		c, peer, p := serveWithPings(t, h, &rpc.Options{MaxPendingRequests: 1})
		p.onPong(0)
		peer.send(`{"id":1,"method":"hold"}`)
		peer.send(`{"id":2,"method":"hold"}`)
		time.Sleep(20 * interval)
		if ended(c) {
			t.Fatalf("the peer was given up while we did not read: %v", context.Cause(c.Context()))
		}
		synctest.Wait()
		held[0].Reply(nil)
		held[1].Reply(nil)
		peer.next()
		peer.next()
		synctest.Wait()
		time.Sleep(5 * interval)
		synctest.Wait()
		if !ended(c) {
			t.Error("a silent peer is kept")
		}
	})
}

// TestSilenceWhileRepliesWait has a peer that takes no replies for a while, so that
// nobody reads what it sends: that is no silence either.
func TestSilenceWhileRepliesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const replies = 40 // more than the transport holds
		h := handler{"large": func(r *rpc.Request) { r.Reply(strings.Repeat("x", 1000)) }}
		c, peer, p := serveWithPings(t, h, &rpc.Options{MaxOutboundBytes: 1000})
		p.onPong(0)
		go func() {
			for range replies {
				_ = peer.conn.Write([]byte(`{"id":1,"method":"large"}`))
			}
		}()
		time.Sleep(20 * interval)
		if ended(c) {
			t.Fatalf("the peer was given up while we did not read: %v", context.Cause(c.Context()))
		}
		for range replies {
			peer.response()
		}
		time.Sleep(5 * interval)
		synctest.Wait()
		if !ended(c) {
			t.Error("a silent peer is kept")
		}
	})
}

// TestHeldReader holds the reader: that is no silence of the peer, and a call
// of ours is answered all the same.
func TestHeldReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		room := make(chan struct{})
		hold := func(calling bool) <-chan struct{} {
			select {
			case <-room:
				return nil
			default:
			}
			if calling {
				return nil
			}
			return room
		}
		c, peer, p := serveWithPings(t, handler{"echo": echo}, &rpc.Options{Pause: hold})
		p.onPong(0)
		time.Sleep(20 * interval)
		synctest.Wait()
		if ended(c) {
			t.Fatalf("the peer was given up while we did not read: %v", context.Cause(c.Context()))
		}
		answered := make(chan error, 1)
		go func() {
			_, err := c.Call(context.Background(), "ask", nil)
			answered <- err
		}()
		peer.expect(`{"id":1,"method":"ask"}`)
		peer.send(`{"id":1,"result":{}}`)
		if err := await(t, "an answer", answered); err != nil {
			t.Errorf("Call: %v", err)
		}
		time.Sleep(20 * interval)
		if ended(c) {
			t.Fatalf("the peer was given up after a call: %v", context.Cause(c.Context()))
		}
		close(room)
		peer.send(`{"id":5,"method":"echo","params":{}}`)
		peer.expect(`{"id":5,"result":{}}`)
		time.Sleep(5 * interval)
		synctest.Wait()
		if !ended(c) {
			t.Error("a silent peer is kept")
		}
	})
}

// TestStuckPing has a ping that cannot be written, which is no answer either.
func TestStuckPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, p := serveWithPings(t, handler{}, nil)
		p.onPong(0)
		stuck := p.block()
		time.Sleep(4 * interval)
		synctest.Wait()
		if n := len(p.seen()); n != 1 {
			t.Errorf("%d pings wait to be written", n)
		}
		if !ended(c) || !errors.Is(context.Cause(c.Context()), rpc.ErrSilent) {
			t.Error("a peer that does not read is kept")
		}
		close(stuck)
	})
}

func TestProbe(t *testing.T) {
	type result struct {
		alive bool
		took  time.Duration
	}
	probe := func(c *running, ctx context.Context) result {
		start := time.Now()
		alive := c.Probe(ctx)
		return result{alive, time.Since(start)}
	}
	const timeout = 700 * time.Millisecond
	for _, test := range []struct {
		name string
		peer func(*running, *client, *pinging, context.CancelFunc) // 100 ms after the ping
		want result
	}{
		{"silent", func(*running, *client, *pinging, context.CancelFunc) {}, result{false, timeout}},
		{"pong", func(_ *running, _ *client, p *pinging, _ context.CancelFunc) { p.onPong(0) }, result{true, 100 * time.Millisecond}},
		{"message", func(_ *running, peer *client, _ *pinging, _ context.CancelFunc) { peer.send(`{"method":"fine"}`) }, result{true, 100 * time.Millisecond}},
		{"part of a message", func(_ *running, _ *client, p *pinging, _ context.CancelFunc) { p.received.Add(1) }, result{true, timeout}},
		{"ends", func(c *running, _ *client, _ *pinging, _ context.CancelFunc) { c.Close(goodbye, errors.New("x")) }, result{false, 100 * time.Millisecond}},
		{"nobody asks any more", func(_ *running, _ *client, _ *pinging, cancel context.CancelFunc) { cancel() }, result{true, 100 * time.Millisecond}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, peer, p := serveWithPings(t, handler{}, &rpc.Options{ProbeTimeout: timeout})
				p.received.Store(1000)
				p.onPong(0) // earlier signs of life do not count
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				go func() {
					time.Sleep(100 * time.Millisecond)
					test.peer(c, peer, p, cancel)
				}()
				if got := probe(c, ctx); got != test.want {
					t.Errorf("%+v, want %+v", got, test.want)
				}
				if n := len(p.seen()); n != 1 {
					t.Errorf("%d pings", n)
				}
			})
		})
	}
	t.Run("without pings", func(t *testing.T) {
		c, _ := serve(t, handler{}, nil)
		if !c.Probe(context.Background()) {
			t.Error("a connection that has not ended is dead")
		}
		c.Close(goodbye, errors.New("x"))
		if c.Probe(context.Background()) {
			t.Error("a connection that has ended is alive")
		}
	})
}
