package rpc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"execserver/internal/rpc"
	"execserver/protocol"
	"execserver/transport"
)

// pair connects two connections, each of which serves its own handler.
func pair(t *testing.T, limit int64, left, right rpc.Handler) (a, b *running) {
	x, y := transport.Pipe(limit)
	return serveOn(t, x, left, nil), serveOn(t, y, right, nil)
}

// TestCallsBothWays has both ends call each other, with the same ids.
func TestCallsBothWays(t *testing.T) {
	tag := func(name string) handler {
		return handler{"tag": func(r *rpc.Request) { r.Go(func() { r.Reply(name + string(r.Params)) }) }}
	}
	a, b := pair(t, 0, tag("a"), tag("b"))
	var wg sync.WaitGroup
	for i := range 500 {
		for c, name := range map[*running]string{a: "b", b: "a"} {
			wg.Go(func() {
				got, err := c.Call(context.Background(), "tag", i)
				if want := fmt.Sprintf(`"%s%d"`, name, i); err != nil || string(got) != want {
					t.Errorf("%s, %v, want %s", got, err, want)
				}
			})
		}
	}
	wg.Wait()
}

// TestCallWithinRequest calls the peer while it waits for the answer.
func TestCallWithinRequest(t *testing.T) {
	var peer *rpc.Conn
	right := handler{"outer": func(r *rpc.Request) {
		r.Go(func() {
			got, err := peer.Call(r.Context(), "inner", nil)
			if err != nil {
				r.Fail(err)
				return
			}
			r.Reply(got)
		})
	}}
	a, b := pair(t, 0, handler{"inner": func(r *rpc.Request) { r.Reply("inside") }}, right)
	peer = b.Conn
	if got, err := a.Call(context.Background(), "outer", nil); err != nil || string(got) != `"inside"` {
		t.Errorf("%s, %v", got, err)
	}
}

func TestCallErrors(t *testing.T) {
	hold := make(chan *rpc.Request, 1)
	h := handler{
		"fail": func(r *rpc.Request) {
			r.Fail(&protocol.Error{Code: -32004, Message: "gone", Data: json.RawMessage(`[1]`)})
		},
		"hold": func(r *rpc.Request) { hold <- r },
		"big":  func(r *rpc.Request) { r.Reply(strings.Repeat("x", 100_000)) },
		"echo": echo,
	}
	b, a := pair(t, 50_000, h, handler{}) // the limit is that of the second
	_, err := a.Call(context.Background(), "fail", nil)
	if e, ok := errors.AsType[*protocol.Error](err); !ok || !errors.Is(err, protocol.ErrNotFound) || string(e.Data) != "[1]" {
		t.Errorf("a refusal: %#v", err)
	}
	if _, err := a.Call(context.Background(), "nope", nil); !errors.Is(err, protocol.ErrMethodNotFound) {
		t.Errorf("an unknown method: %v", err)
	}
	if _, err := a.Call(context.Background(), "echo", func() {}); err == nil {
		t.Error("params that cannot be encoded were sent")
	}

	// An answer above the limit fails its call, and nothing else.
	_, err = a.Call(context.Background(), "big", nil)
	if e, ok := errors.AsType[*transport.TooLargeError](err); !ok || e.Limit != 50_000 {
		t.Errorf("an answer above the limit: %v", err)
	}

	// A caller that gives up, and the answer that comes after.
	reason := errors.New("no more patience")
	ctx, cancel := context.WithCancelCause(context.Background())
	given := make(chan error)
	go func() {
		_, err := a.Call(ctx, "hold", nil)
		given <- err
	}()
	r := await(t, "the request", hold)
	cancel(reason)
	if err := await(t, "Call", given); !errors.Is(err, reason) {
		t.Errorf("a cancelled call: %v", err)
	}
	r.Reply("late")
	if got, err := a.Call(context.Background(), "echo", 1); err != nil || string(got) != "1" {
		t.Errorf("after a late answer: %s, %v", got, err)
	}

	// Calls that wait when the connection ends.
	for range 10 {
		go func() {
			_, err := a.Call(context.Background(), "hold", nil)
			given <- err
		}()
		await(t, "the request", hold)
	}
	b.Close(transport.Reason{}, errors.New("done"))
	for range 10 {
		if err := await(t, "Call", given); !errors.Is(err, rpc.ErrPeerClosed) {
			t.Errorf("a call when the peer closed: %v", err)
		}
	}
}

// TestAnswersTwice answers one call twice, and one that was not made.
func TestAnswersTwice(t *testing.T) {
	var log logs
	c, peer := serve(t, handler{"echo": echo}, &rpc.Options{Log: log.logger()})
	for i := 1; i <= 3; i++ {
		got := make(chan string, 1)
		go func() {
			result, err := c.Call(context.Background(), "m", nil)
			got <- fmt.Sprint(string(result), err)
		}()
		peer.expect(fmt.Sprintf(`{"id":%d,"method":"m"}`, i))
		peer.send(`{"id":"%d","result":"not this"}`, i)
		peer.send(`{"id":%d,"result":"first"}`, i)
		peer.send(`{"id":%d,"result":"second"}`, i)
		if got := await(t, "the call", got); got != `"first"<nil>` {
			t.Errorf("call %d: %s", i, got)
		}
	}
	peer.send(`{"id":9,"method":"echo","params":1}`)
	peer.expect(`{"id":9,"result":1}`)
	if n := strings.Count(log.String(), "a reply without a request"); n != 6 {
		t.Errorf("%d responses logged, want 6", n)
	}
}
