package rpc_test

import (
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"execserver/internal/rpc"
	"execserver/transport"
)

// reserving serves a method with a reply of size bytes, for which it reserves
// first.
func reserving(t *testing.T, size int) func(*rpc.Request) {
	return func(r *rpc.Request) {
		r.Go(func() {
			if err := r.Reserve(size); err != nil {
				r.Fail(err)
				return
			}
			r.Reply(strings.Repeat("x", size))
		})
	}
}

// TestReserveInTurn asks for a large reply while as many smaller ones are under
// way as there is room for, and each that comes is asked for again. The large one
// is not overtaken for ever.
func TestReserveInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const inFlight, bound = 12, 100
		ours, theirs := net.Pipe() // which holds nothing
		near := transport.NewLines("lines", theirs, theirs, theirs.Close, 0)
		h := handler{"small": reserving(t, 1_400_000), "large": reserving(t, 8_000_000)}
		serveOn(t, near, h, &rpc.Options{MaxOutboundBytes: 4_000_000})
		peer := &client{t, transport.NewLines("lines", ours, ours, ours.Close, 0)}
		for range inFlight {
			peer.send(`{"id":1,"method":"small"}`)
		}
		synctest.Wait()
		peer.send(`{"id":2,"method":"large"}`)
		for answered := 0; ; answered++ {
			peer.send(`{"id":1,"method":"small"}`)
			synctest.Wait()
			if r := peer.response(); r.ID == 2 {
				return
			}
			if answered == bound {
				t.Fatalf("%d replies have overtaken a larger one", bound)
			}
		}
	})
}

// TestReserveAgain reserves twice for one request, which waits for nothing of its
// own.
func TestReserveAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, peer := serve(t, handler{"twice": func(r *rpc.Request) {
			r.Go(func() {
				for range 2 {
					if err := r.Reserve(1000); err != nil {
						t.Error(err)
					}
				}
				r.Reply("twice")
			})
		}}, &rpc.Options{MaxOutboundBytes: 1000})
		for range 3 {
			peer.send(`{"id":1,"method":"twice"}`)
			peer.expect(`{"id":1,"result":"twice"}`)
		}
	})
}

// TestGrow makes a reservation larger, as far as that takes no waiting.
func TestGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held, release := make(chan bool, 10), make(chan struct{})
		_, peer := serve(t, handler{"grow": func(r *rpc.Request) {
			r.Go(func() {
				if err := r.ReserveFile(1000); err != nil {
					t.Error(err)
				}
				held <- r.GrowFile(6000)
				<-release
				r.Reply(nil)
			})
		}}, &rpc.Options{MaxOutboundBytes: 10_000})
		for range 2 {
			peer.send(`{"id":1,"method":"grow"}`)
			synctest.Wait()
		}
		if first, second := <-held, <-held; !first || second {
			t.Errorf("grew: %v, and beside it %v; want true, false", first, second)
		}
		release <- struct{}{} // one of the two
		release <- struct{}{}
		peer.response()
		peer.response()
	})
}

// TestReserveWhileFilesHang has replies that are never made, as of a file on a file system
// that does not answer. Requests that do not use files get their room at once, and so do
// small replies to those that do.
func TestReserveWhileFilesHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, stuck = 1_000_000, 20
		_, peer := serve(t, handler{
			"hang": func(r *rpc.Request) {
				r.Go(func() {
					if err := r.ReserveFile(8 * limit); err != nil {
						r.Fail(err)
						return
					}
					<-r.Context().Done()
					r.Drop()
				})
			},
			"file": func(r *rpc.Request) {
				r.Go(func() {
					if err := r.ReserveFile(1000); err != nil {
						t.Error(err)
					}
					r.Reply(nil)
				})
			},
			"large": reserving(t, 2*limit), "small": reserving(t, 1000),
		}, &rpc.Options{MaxOutboundBytes: limit})
		for range stuck {
			peer.send(`{"id":0,"method":"hang"}`)
		}
		synctest.Wait()
		for i, method := range []string{"small", "large", "file"} {
			peer.send(`{"id":%d,"method":%q}`, i+1, method)
			if r := peer.response(); r.ID != i+1 {
				t.Errorf("%s: an answer to %d", method, r.ID)
			}
		}
	})
}
