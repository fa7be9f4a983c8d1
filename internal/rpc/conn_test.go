package rpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"execserver/internal/rpc"
	"execserver/protocol"
	"execserver/transport"
)

func TestScenarios(t *testing.T) {
	failing := func(err error) func(*rpc.Request) { return func(r *rpc.Request) { r.Fail(err) } }
	h := handler{
		"echo":    echo,
		"coded":   failing(fmt.Errorf("outer: %w", &protocol.Error{Code: -32004, Message: "gone", Data: json.RawMessage(`{"a":1}`)})),
		"plain":   failing(errors.New("disk on fire")),
		"unfit":   func(r *rpc.Request) { r.Reply(func() {}) },
		"nothing": func(r *rpc.Request) { r.Reply(nil) },
	}
	const parse = `{"error":{"code":-32600,"message":"malformed message: `
	for _, test := range []struct {
		name  string
		steps []string // "> " sends, "? " as well, unless the connection is closed, "< " expects
	}{
		{"replies", []string{
			`> {"id":1,"method":"echo","params":{"a":[1]}}`, `< {"id":1,"result":{"a":[1]}}`,
			`> {"id":"x","method":"echo","params":7}`, `< {"id":"x","result":7}`,
			`> {"id":-9007199254740993,"method":"nothing"}`, `< {"id":-9007199254740993,"result":null}`,
		}},
		{"one id twice", []string{
			`> {"id":1,"method":"nothing"}`, `> {"id":1,"method":"nothing"}`, `< {"id":1,"result":null}`, `< {"id":1,"result":null}`,
		}},
		{"errors", []string{
			`> {"id":1,"method":"nope"}`, `< {"error":{"code":-32601,"message":"no nope"},"id":1}`,
			`> {"id":2,"method":"coded"}`, `< {"error":{"code":-32004,"message":"gone","data":{"a":1}},"id":2}`,
			`> {"id":3,"method":"plain"}`, `< {"error":{"code":-32603,"message":"disk on fire"},"id":3}`,
			`> {"id":4,"method":"unfit"}`, `< {"error":{"code":-32603,"message":"encode func(): *`,
		}},
		{"malformed", []string{
			`> `, "< " + parse + `invalid JSON: it ends after 0 bytes, in the middle of a value"},"id":-1}`,
			`> nope`, "< " + parse + `invalid JSON at byte 1: no value"},"id":-1}`,
			`> []`, "< " + parse + `a message is one JSON object"},"id":-1}`,
			"> {\"method\":\"\xff\"}", "< " + parse + `invalid UTF-8"},"id":-1}`,
			`> {"id":null,"method":"echo"}`, "< " + parse + "id: expected a string or a 64-bit integer, got null\"},\"id\":-1}",
			`> {"id":1,"method":"nothing"}`, `< {"id":1,"result":null}`,
		}},
		{"unknown responses", []string{
			`> {"id":1,"result":null}`, `> {"id":"x","error":{"code":1,"message":"m"}}`, `> {"method":"fine"}`,
			`> {"id":1,"method":"nothing"}`, `< {"id":1,"result":null}`,
		}},
		{"violation", []string{
			`> {"id":1,"method":"nothing"}`, `> {"method":"wrong","params":[1]}`, `? {"id":2,"method":"nothing"}`,
			`< {"id":1,"result":null}`, `< {"error":{"code":-32600,"message":"no notification wrong, params [1]"},"id":-1}`, `< error: EOF`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the peer has a second to read why the connection ends
				_, peer := serve(t, h, nil)
				for _, step := range test.steps {
					switch step[:2] {
					case "> ":
						peer.send("%s", step[2:])
					case "? ":
						_ = peer.conn.Write([]byte(step[2:]))
					default:
						peer.expect(step[2:])
					}
				}
			})
		})
	}
}

func TestTooLarge(t *testing.T) {
	far, near := transport.Pipe(1000)
	var log logs
	serveOn(t, near, handler{"echo": echo}, &rpc.Options{Log: log.logger()})
	peer := &client{t, far}
	for _, test := range []struct{ start, id string }{
		{`{"id":7,"method":"echo","params":"`, `7`},
		{`{"method":"echo","id":"seven","params":"`, `"seven"`},
		{`{"method":"echo","params":"`, `-1`},
		{`not JSON`, `-1`},
	} {
		msg := test.start + strings.Repeat("x", 2000)
		peer.send("%s", msg)
		peer.expect(fmt.Sprintf(`{"error":{"code":-32600,"message":"message of %d bytes exceeds the limit of 1000 bytes"},"id":%s}`, len(msg), test.id))
	}
	// Nobody asked, so nobody is answered.
	peer.send(`{"id":7,"result":"%s"}`, strings.Repeat("x", 2000))
	peer.send(`{"id":8,"method":"echo","params":8}`)
	peer.expect(`{"id":8,"result":8}`)
	if !strings.Contains(log.String(), "exceeds the limit of 1000 bytes") {
		t.Errorf("the log does not tell: %s", log.String())
	}
}

// TestPipelined sends everything before it reads anything.
func TestPipelined(t *testing.T) {
	const count = 20_000
	h := handler{
		"direct": echo,
		"go":     func(r *rpc.Request) { r.Go(func() { echo(r) }) },
		"pool":   func(r *rpc.Request) { r.Pool(func() { echo(r) }) },
		"lane":   func(r *rpc.Request) { r.Queue(string(r.Params[:1]), rpc.Blocking, func(*rpc.Lane) { echo(r) }) },
		"quick":  func(r *rpc.Request) { r.Queue("quick", rpc.Quick, func(*rpc.Lane) { echo(r) }) },
	}
	for name := range h {
		t.Run(name, func(t *testing.T) {
			_, peer := serve(t, h, nil)
			for i := range count {
				peer.send(`{"id":%d,"method":"%s","params":%d}`, i, name, i)
			}
			seen := make([]bool, count)
			last := 0
			for range count {
				msg, err := peer.conn.Read(nil)
				if err != nil {
					t.Fatal(err)
				}
				var r response
				if err := json.Unmarshal(msg, &r); err != nil {
					t.Fatal(err)
				}
				if r.ID < 0 || r.ID >= count || seen[r.ID] || string(r.Result) != fmt.Sprint(r.ID) {
					t.Fatalf("answer %s", msg)
				}
				if ordered := name == "direct" || name == "quick"; ordered && r.ID < last {
					t.Fatalf("answer %d after %d", r.ID, last)
				}
				seen[r.ID], last = true, r.ID
			}
		})
	}
}

// TestBlockedHandlers has requests that wait, and others that must not.
func TestBlockedHandlers(t *testing.T) {
	release := make(chan struct{})
	block := func(r *rpc.Request) {
		<-release
		echo(r)
	}
	h := handler{
		"direct": echo,
		"go":     func(r *rpc.Request) { r.Go(func() { block(r) }) },
		"pool":   func(r *rpc.Request) { r.Pool(func() { block(r) }) },
		"lane":   func(r *rpc.Request) { r.Queue("slow", rpc.Blocking, func(*rpc.Lane) { block(r) }) },
		"other":  func(r *rpc.Request) { r.Queue("other", rpc.Blocking, func(*rpc.Lane) { echo(r) }) },
		"free":   func(r *rpc.Request) { r.Pool(func() { echo(r) }) },
	}
	_, peer := serve(t, h, nil)
	waiting := 0
	for _, method := range []string{"go", "lane", "pool"} {
		for range 100 { // the pool has room for more
			peer.send(`{"id":%d,"method":"%s","params":1}`, waiting, method)
			waiting++
		}
	}
	for i := range 100 {
		method := []string{"direct", "other", "free"}[i%3]
		peer.send(`{"id":%d,"method":"%s","params":2}`, 1000+i, method)
		peer.expect(fmt.Sprintf(`{"id":%d,"result":2}`, 1000+i))
	}
	close(release)
	for range waiting {
		if r := peer.response(); r.ID >= waiting || string(r.Result) != "1" {
			t.Errorf("answer %+v", r)
		}
	}
}

// TestPoolIsBounded counts how many requests of the pool run at once.
func TestPoolIsBounded(t *testing.T) {
	const size, count = 128, 1000
	var mu sync.Mutex
	now, most := 0, 0
	var once sync.Once
	full, release := make(chan struct{}), make(chan struct{})
	h := handler{"pool": func(r *rpc.Request) {
		r.Pool(func() {
			mu.Lock()
			now++
			if most = max(most, now); now == size {
				once.Do(func() { close(full) })
			}
			mu.Unlock()
			<-release
			mu.Lock()
			now--
			mu.Unlock()
			r.Reply(nil)
		})
	}}
	_, peer := serve(t, h, nil)
	for i := range count {
		peer.send(`{"id":%d,"method":"pool"}`, i)
		if i == size {
			await(t, "the pool to fill", full)
		}
	}
	close(release)
	for range count {
		peer.response()
	}
	if most != size {
		t.Errorf("%d at once, want %d", most, size)
	}
}

func TestPanics(t *testing.T) {
	here := func(r *rpc.Request) { panic("boom in " + r.Method) }
	h := handler{
		"direct": here,
		"go":     func(r *rpc.Request) { r.Go(func() { here(r) }) },
		"pool":   func(r *rpc.Request) { r.Pool(func() { here(r) }) },
		"lane":   func(r *rpc.Request) { r.Queue("k", rpc.Blocking, func(*rpc.Lane) { here(r) }) },
		"waiting": func(r *rpc.Request) {
			r.Queue("k", rpc.Blocking, func(lane *rpc.Lane) { lane.Wait(func() { here(r) }) })
		},
		"late": func(r *rpc.Request) {
			r.Reply("done")
			here(r)
		},
		"echo": echo,
	}
	var log logs
	_, peer := serve(t, h, &rpc.Options{Log: log.logger()})
	for i, method := range []string{"direct", "go", "pool", "lane", "waiting"} {
		peer.send(`{"id":%d,"method":"%s"}`, i, method)
		r := peer.response()
		if r.ID != i || !errors.Is(r.Error, protocol.ErrInternal) || strings.Contains(r.Error.Message, "boom") || !strings.Contains(r.Error.Message, "incident") {
			t.Errorf("%s: %+v", method, r)
		}
	}
	peer.send(`{"id":9,"method":"late"}`)
	peer.expect(`{"id":9,"result":"done"}`)
	peer.send(`{"method":"panic"}`)
	peer.send(`{"id":10,"method":"echo","params":1}`)
	peer.expect(`{"id":10,"result":1}`)
	for _, want := range []string{
		"boom in direct", "boom in go", "boom in pool", "boom in lane", "boom in waiting", "boom in late", "a notification",
		"conn_test.go", "incident=",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not have %q", want)
		}
	}
}

func TestAnsweredTwice(t *testing.T) {
	var log logs
	h := handler{"twice": func(r *rpc.Request) {
		r.Reply(1)
		r.Reply(2)
		r.Fail(errors.New("3"))
		r.Drop()
	}, "echo": echo}
	_, peer := serve(t, h, &rpc.Options{Log: log.logger()})
	peer.send(`{"id":1,"method":"twice"}`)
	peer.send(`{"id":2,"method":"echo","params":2}`)
	peer.expect(`{"id":1,"result":1}`)
	peer.expect(`{"id":2,"result":2}`)
	if n := strings.Count(log.String(), "request answered twice"); n != 2 || !strings.Contains(log.String(), "method=twice id=1") {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
}

// TestEnd covers the ways in which a connection ends.
func TestEnd(t *testing.T) {
	reason := errors.New("a reason")
	for _, test := range []struct {
		name string
		end  func(*running, *client)
		want error
	}{
		{"peer closes", func(_ *running, peer *client) { _ = peer.conn.Close(transport.Reason{}) }, rpc.ErrPeerClosed},
		{"closed here", func(c *running, _ *client) { c.Close(transport.Reason{}, reason) }, reason},
		{"closed twice", func(c *running, _ *client) {
			c.Close(transport.Reason{}, reason)
			c.Close(transport.Reason{}, errors.New("another"))
		}, reason},
	} {
		t.Run(test.name, func(t *testing.T) {
			started, causes := make(chan struct{}), make(chan error, 3)
			wait := func(r *rpc.Request) {
				started <- struct{}{}
				<-r.Context().Done()
				causes <- context.Cause(r.Context())
				r.Reply(nil)
			}
			h := handler{
				"go":   func(r *rpc.Request) { r.Go(func() { wait(r) }) },
				"pool": func(r *rpc.Request) { r.Pool(func() { wait(r) }) },
				"lane": func(r *rpc.Request) { r.Queue("k", rpc.Blocking, func(*rpc.Lane) { wait(r) }) },
			}
			c, peer := serve(t, h, nil)
			for _, method := range []string{"go", "pool", "lane"} {
				peer.send(`{"id":1,"method":"%s"}`, method)
				await(t, "the handler", started)
			}
			// These find the connection ended when their turn comes.
			peer.send(`{"id":1,"method":"lane"}`)
			test.end(c, peer)
			if err := c.wait(t); !errors.Is(err, test.want) {
				t.Errorf("Run: %v, want %v", err, test.want)
			}
			for range 3 {
				if err := <-causes; !errors.Is(err, test.want) {
					t.Errorf("the cause: %v, want %v", err, test.want)
				}
			}
			if _, err := c.Call(context.Background(), "m", nil); !errors.Is(err, test.want) {
				t.Errorf("Call after the end: %v", err)
			}
			if err := c.Notify("m", nil); !errors.Is(err, test.want) {
				t.Errorf("Notify after the end: %v", err)
			}
		})
	}
}

// TestCloseFlushes sends what is queued before the end, for which the peer has a second.
func TestCloseFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := serve(t, handler{}, nil)
		const count = 1000
		for i := range count {
			if err := c.Notify("n", i); err != nil {
				t.Fatal(err)
			}
		}
		c.Close(transport.Reason{}, errors.New("done"))
		for i := range count {
			peer.expect(fmt.Sprintf(`{"method":"n","params":%d}`, i))
		}
		peer.expect("error: EOF")
	})
}
