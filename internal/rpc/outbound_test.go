package rpc_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"execserver/internal/rpc"
	"execserver/protocol"
	"execserver/transport"
)

// TestReserve has a peer that asks for much and does not read.
func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, limit, count = 100_000, 1_000_000, 200
		var made atomic.Int64
		h := handler{"big": func(r *rpc.Request) {
			r.Go(func() {
				if err := r.Reserve(size); err != nil {
					r.Fail(err)
					return
				}
				made.Add(1)
				r.Reply(strings.Repeat("x", size-100))
			})
		}}
		_, peer := serve(t, h, &rpc.Options{MaxOutboundBytes: limit})
		for i := range count {
			peer.send(`{"id":%d,"method":"big"}`, i)
		}
		synctest.Wait()
		// Those that the transport holds are the peer's.
		if n := made.Load(); n > limit/size+16+1 {
			t.Errorf("%d replies were made for a peer that does not read", n)
		}
		for range count {
			if r := peer.response(); len(r.Result) < size-100 {
				t.Errorf("a reply of %d bytes, %v", len(r.Result), r.Error)
			}
		}
	})
}

// TestReserveTooMuch lets one reply pass that is larger than the bound.
func TestReserveTooMuch(t *testing.T) {
	h := handler{"big": func(r *rpc.Request) {
		r.Go(func() {
			if err := r.Reserve(1 << 30); err != nil {
				r.Fail(err)
				return
			}
			r.Reply("one")
		})
	}}
	_, peer := serve(t, h, &rpc.Options{MaxOutboundBytes: 10})
	for i := range 50 {
		peer.send(`{"id":%d,"method":"big"}`, i)
	}
	for range 50 {
		if r := peer.response(); string(r.Result) != `"one"` {
			t.Errorf("%+v", r)
		}
	}
}

// TestReserveGivenBack fails and drops requests that have reserved.
func TestReserveGivenBack(t *testing.T) {
	h := handler{
		"fail": func(r *rpc.Request) {
			if err := r.Reserve(1000); err != nil {
				t.Error(err)
			}
			r.Fail(errors.New("changed its mind"))
		},
		"drop": func(r *rpc.Request) {
			if err := r.Reserve(1000); err != nil {
				t.Error(err)
			}
			r.Drop()
		},
	}
	_, peer := serve(t, h, &rpc.Options{MaxOutboundBytes: 1500})
	for i := range 100 {
		peer.send(`{"id":%d,"method":"drop"}`, i)
		peer.send(`{"id":%d,"method":"fail"}`, i)
		peer.expect(fmt.Sprintf(`{"error":{"code":-32603,"message":"changed its mind"},"id":%d}`, i))
	}
}

// TestReserveEnds wakes those that wait for room when the connection ends.
func TestReserveEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		results := make(chan error, 100)
		h := handler{"big": func(r *rpc.Request) {
			r.Go(func() {
				err := r.Reserve(1000)
				results <- err
				if err == nil {
					r.Reply(strings.Repeat("x", 1000))
					return
				}
				r.Fail(err)
			})
		}}
		c, peer := serve(t, h, &rpc.Options{MaxOutboundBytes: 2000})
		for i := range 100 {
			peer.send(`{"id":%d,"method":"big"}`, i)
		}
		synctest.Wait()
		c.Close(transport.Reason{}, errors.New("done"))
		failed := 0
		for range 100 {
			if err := <-results; err != nil {
				failed++
			}
		}
		if failed < 50 {
			t.Errorf("only %d of 100 were refused", failed)
		}
		_ = c.wait(t)
	})
}

// TestFloodWithoutReading has a peer that sends and never reads; what it sends
// stands still, and goes on when it reads.
func TestFloodWithoutReading(t *testing.T) {
	for name, msg := range map[string]string{
		"requests":     `{"id":1,"method":"small"}`,
		"malformed":    `nonsense`,
		"unknown":      `{"id":1,"method":"` + strings.Repeat("unknown", 20) + `"}`,
		"over the top": `{"id":1,"method":"small","params":"` + strings.Repeat("x", 2000) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const limit = 100_000
				far, near := transport.Pipe(1000)
				c := serveOn(t, near, handler{"small": func(r *rpc.Request) { r.Reply(nil) }}, &rpc.Options{MaxOutboundBytes: limit})
				var sent atomic.Int64
				stopped := make(chan struct{})
				go func() {
					defer close(stopped)
					for sent.Load() < 60_000 && far.Write([]byte(msg)) == nil {
						sent.Add(1)
					}
				}()
				synctest.Wait()
				least := len(`{"id":1,"result":null}`)
				if n := sent.Load(); n > int64(limit/least+100) {
					t.Errorf("%d requests were taken from a peer that does not read", n)
				}
				before := sent.Load()
				for range 10_000 {
					if _, err := far.Read(nil); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				if n := sent.Load(); n < before+5_000 {
					t.Errorf("%d requests were taken before the peer read, %d afterwards", before, n)
				}
				_ = far.Close(transport.Reason{})
				_ = c.wait(t)
				<-stopped
			})
		})
	}
}

// TestLargeReplyDoesNotPause sends a large request before it reads a large
// reply.
func TestLargeReplyDoesNotPause(t *testing.T) {
	h := handler{"big": func(r *rpc.Request) {
		r.Go(func() {
			if err := r.Reserve(1 << 20); err != nil {
				t.Error(err)
			}
			r.Reply(strings.Repeat("x", 1<<20))
		})
	}, "echo": echo}
	synctest.Test(t, func(t *testing.T) {
		_, peer := serve(t, h, &rpc.Options{MaxOutboundBytes: 1000})
		for i := range 20 { // more than the transport holds
			peer.send(`{"id":%d,"method":"big"}`, i)
		}
		synctest.Wait()
		for i := range 30 {
			peer.send(`{"id":%d,"method":"echo","params":1}`, 100+i)
		}
		for range 50 {
			peer.response()
		}
	})
}

// TestAdmission stops reading while too many requests wait for an answer.
func TestAdmission(t *testing.T) {
	for name, opts := range map[string]*rpc.Options{
		"count": {MaxPendingRequests: 10},
		"bytes": {MaxPendingBytes: 10 * int64(len(`{"id":100,"method":"hold"}`))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var held []*rpc.Request
				h := handler{"hold": func(r *rpc.Request) { held = append(held, r) }}
				c, peer := serve(t, h, opts)
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					for i := range 50 {
						if peer.conn.Write(fmt.Appendf(nil, `{"id":%d,"method":"hold"}`, 100+i)) != nil {
							return
						}
					}
				}()
				for taken := 11; taken <= 30; taken++ {
					synctest.Wait()
					if len(held) != taken {
						t.Fatalf("%d requests were taken, want %d", len(held), taken)
					}
					held[taken-11].Reply(nil)
				}
				// A connection ends although its requests never do.
				c.Close(transport.Reason{}, errors.New("done"))
				synctest.Wait()
				select {
				case <-c.Context().Done():
				default:
					t.Error("the connection goes on")
				}
				_ = c.wait(t)
				<-sent
			})
		})
	}
}

// TestAdmissionOfWhatIsGone gives room back for dropped and failed requests.
func TestAdmissionOfWhatIsGone(t *testing.T) {
	h := handler{
		"drop":  func(r *rpc.Request) { r.Drop() },
		"fail":  func(r *rpc.Request) { r.Fail(protocol.ErrNotFound) },
		"panic": func(*rpc.Request) { panic("x") },
		"echo":  echo,
	}
	_, peer := serve(t, h, &rpc.Options{MaxPendingRequests: 1})
	for i := range 50 {
		peer.send(`{"id":1,"method":"drop"}`)
		peer.send(`{"id":2,"method":"fail"}`)
		peer.expect(`{"error":{"code":-32004,*`)
		peer.send(`{"id":3,"method":"panic"}`)
		peer.expect(`{"error":{"code":-32603,*`)
		peer.send(`{"id":4,"method":"echo","params":%d}`, i)
		peer.expect(fmt.Sprintf(`{"id":4,"result":%d}`, i))
	}
}

// TestParamsStay holds params while other messages arrive.
func TestParamsStay(t *testing.T) {
	var held []*rpc.Request
	ready := make(chan struct{})
	h := handler{"hold": func(r *rpc.Request) {
		if held = append(held, r); len(held) == 100 {
			close(ready)
		}
	}, "echo": echo}
	_, peer := serve(t, h, nil)
	for i := range 100 {
		peer.send(`{"id":%d,"method":"hold","params":"%s"}`, i, strings.Repeat(string(rune('a'+i%26)), i*10))
		peer.send(`{"id":%d,"method":"echo","params":"%s"}`, i, strings.Repeat("?", i*10))
		peer.response()
	}
	await(t, "the requests", ready)
	for i, r := range held {
		want, _ := json.Marshal(strings.Repeat(string(rune('a'+i%26)), i*10))
		if string(r.Params) != string(want) {
			t.Errorf("params %d became %s", i, r.Params)
		}
		r.Reply(nil)
	}
	for range held {
		peer.response()
	}
}

// TestRepliesTogether has many requests answered while a write is under way: what
// they have to say takes few writes, none of them large.
func TestRepliesTogether(t *testing.T) {
	const requests = 100
	far, near := transport.Pipe(0)
	var writes, most atomic.Int64
	var answered sync.WaitGroup
	answered.Add(requests)
	stream := &tapped{near, func(messages [][]byte) {
		answered.Wait() // which only the first write has to
		writes.Add(1)
		size := 0
		for _, msg := range messages {
			size += len(msg)
		}
		most.Store(max(most.Load(), int64(size)))
	}}
	serveOn(t, stream, handler{"ask": func(r *rpc.Request) {
		r.Reply(strings.Repeat("x", 500))
		answered.Done()
	}}, nil)
	peer := &client{t, far}
	for i := range requests {
		peer.send(`{"id":%d,"method":"ask"}`, i)
	}
	seen := map[int]bool{}
	for range requests {
		seen[peer.response().ID] = true
	}
	if len(seen) != requests {
		t.Errorf("%d of %d requests were answered", len(seen), requests)
	}
	if n := writes.Load(); n > 10 {
		t.Errorf("%d writes for %d answers", n, requests)
	}
	if n := most.Load(); n > 16<<10 {
		t.Errorf("%d bytes written together", n)
	}
}
