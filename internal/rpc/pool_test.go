package rpc_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/rpc"
	"execserver/transport"
)

// TestPoolsOfFiles fills the pools of requests that use a file system with ones that do
// not return. Other requests are served at once, and those that wait are served in order
// of arrival.
func TestPoolsOfFiles(t *testing.T) {
	t.Run("pool", func(t *testing.T) { testPoolOfFiles(t, 128, (*rpc.Request).FilePool) })
	t.Run("heavy", func(t *testing.T) { testPoolOfFiles(t, 16, (*rpc.Request).HeavyFilePool) })
}

func testPoolOfFiles(t *testing.T, size int, pool func(*rpc.Request, func())) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var running atomic.Int64
		h := handler{
			"stuck": func(r *rpc.Request) {
				pool(r, func() {
					running.Add(1)
					<-release
					echo(r)
				})
			},
			"file":  func(r *rpc.Request) { pool(r, func() { echo(r) }) },
			"pool":  func(r *rpc.Request) { r.Pool(func() { echo(r) }) },
			"heavy": func(r *rpc.Request) { r.HeavyPool(func() { echo(r) }) },
		}
		_, peer := serve(t, h, nil)
		const more = 100
		for i := range size + more {
			peer.send(`{"id":%d,"method":"stuck","params":0}`, i)
		}
		for i := range 3 {
			peer.send(`{"id":%d,"method":"file","params":1}`, 10_000+i)
		}
		for i, method := range []string{"pool", "heavy"} {
			peer.send(`{"id":%d,"method":%q,"params":1}`, 20_000+i, method)
			peer.expect(fmt.Sprintf(`{"id":%d,"result":1}`, 20_000+i))
		}
		synctest.Wait()
		if n := running.Load(); n != int64(size) {
			t.Errorf("%d requests are running, want %d", n, size)
		}
		for range more { // one after another, so that the order shows
			release <- struct{}{}
			synctest.Wait()
			peer.response()
		}
		release <- struct{}{}
		synctest.Wait()
		seen := map[int]bool{}
		for range 4 { // the one that was stuck, and the three behind it
			seen[peer.response().ID] = true
		}
		for i := range 3 {
			if !seen[10_000+i] {
				t.Errorf("request %d was not served in its turn: %v", i, seen)
			}
		}
		close(release)
		for range size - 1 {
			peer.response()
		}
	})
}

// TestPoolBehindASlowPeer has requests wait for a peer that does not read: those keep
// their places, and so what they hold is bounded.
func TestPoolBehindASlowPeer(t *testing.T) {
	const size, count = 128, 300
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		h := handler{"big": func(r *rpc.Request) {
			r.Pool(func() {
				running.Add(1)
				defer running.Add(-1)
				if err := r.Reserve(1000); err != nil {
					r.Fail(err)
					return
				}
				r.Reply(strings.Repeat("x", 900))
			})
		}}
		_, peer := serve(t, h, &rpc.Options{MaxOutboundBytes: 1000})
		for i := range count {
			peer.send(`{"id":%d,"method":"big"}`, i)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := running.Load(); n != size {
			t.Errorf("%d requests hold something, want %d", n, size)
		}
		for range count {
			peer.response()
		}
	})
}

// TestAnswerTooLarge has a handler make more than a client takes.
func TestAnswerTooLarge(t *testing.T) {
	h := handler{"big": func(r *rpc.Request) {
		var n int
		_ = json.Unmarshal(r.Params, &n)
		r.Reply(json.RawMessage(`"` + strings.Repeat("x", n) + `"`))
	}}
	_, peer := serve(t, h, nil)
	const limit = 64 << 20
	around := len(`{"id":1,"result":""}`)
	peer.send(`{"id":1,"method":"big","params":%d}`, limit-around)
	if msg := peer.next(); len(msg) != limit {
		t.Errorf("an answer of %d bytes", len(msg))
	}
	peer.send(`{"id":1,"method":"big","params":%d}`, limit-around+1)
	peer.expect(`{"error":{"code":-32600,"message":"the answer to big is 67108865 bytes long, the limit is 67108864; ask for less"},"id":1}`)
}

// TestPublish sends notifications to a peer that does not read: they wait, and
// the end of the connection ends the wait.
func TestPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := serve(t, handler{}, &rpc.Options{MaxOutboundBytes: 100_000}) // no two are written together
		var sent atomic.Int64
		ended := make(chan error, 1)
		go func() {
			var err error
			for i := 0; i < 1000 && err == nil; i++ {
				if err = c.Publish("n", strings.Repeat("x", 40_000), 50_000); err == nil {
					sent.Add(1)
				}
			}
			ended <- err
		}()
		synctest.Wait()
		before := sent.Load()
		if before > 16+3 { // the transport takes some
			t.Errorf("%d notifications were made for a peer that does not read", before)
		}
		peer.next()
		synctest.Wait()
		if n := sent.Load(); n != before+1 {
			t.Errorf("%d notifications after there was room for one, %d before", n, before)
		}
		_ = peer.conn.Close(transport.Reason{})
		if err := await(t, "the end", ended); err == nil {
			t.Error("no error")
		}
	})
}
