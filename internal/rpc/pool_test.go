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

// TestPoolOverdue fills the pool with requests that do not return: others get
// their places after a while, up to a limit.
func TestPoolOverdue(t *testing.T) {
	t.Run("pool", func(t *testing.T) { testPoolOverdue(t, 128, 512, (*rpc.Request).Pool) })
	t.Run("heavy", func(t *testing.T) { testPoolOverdue(t, 16, 128, (*rpc.Request).HeavyPool) })
}

func testPoolOverdue(t *testing.T, size, overdue int, pool func(*rpc.Request, func())) {
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
			"quick": func(r *rpc.Request) { pool(r, func() { echo(r) }) },
		}
		_, peer := serve(t, h, &rpc.Options{Patience: time.Second})
		for i := range size {
			peer.send(`{"id":%d,"method":"stuck","params":0}`, i)
		}
		synctest.Wait()
		start := time.Now()
		for i := range 3 {
			peer.send(`{"id":%d,"method":"quick","params":1}`, 10_000+i)
			peer.expect(fmt.Sprintf(`{"id":%d,"result":1}`, 10_000+i))
			if waited := time.Since(start); waited != time.Second {
				t.Errorf("request %d waited for %v", i, waited)
			}
		}

		// Whoever does this again and again only gets so far.
		for i := range 2000 {
			peer.send(`{"id":%d,"method":"stuck","params":0}`, size+i)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := running.Load(); n != int64(size+overdue) {
			t.Errorf("%d requests are running, want %d", n, size+overdue)
		}
		peer.send(`{"id":20000,"method":"quick","params":1}`)
		close(release)
		for range size + 2000 + 1 {
			peer.next()
		}
	})
}

// TestPoolPatient has requests wait for a peer that does not read: those keep
// their places, and so what they hold is bounded.
func TestPoolPatient(t *testing.T) {
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
		_, peer := serve(t, h, &rpc.Options{Patience: time.Second, MaxOutboundBytes: 1000})
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
