package rpc_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/rpc"
	"execserver/transport"
)

// serveLines serves one end of a stream of lines, which the other end may close
// in its own direction only.
func serveLines(t *testing.T, h rpc.Handler, timeout time.Duration) (c *running, in io.WriteCloser, out net.Conn) {
	return serveLinesWith(t, h, &rpc.Options{FinishTimeout: timeout})
}

func serveLinesWith(t *testing.T, h rpc.Handler, opts *rpc.Options) (c *running, in io.WriteCloser, out net.Conn) {
	theirs, in := io.Pipe()
	out, ours := net.Pipe()
	stop := func() error { return errors.Join(theirs.Close(), ours.Close()) }
	c = serveOn(t, transport.NewLines("lines", theirs, ours, stop, 0), h, opts)
	t.Cleanup(func() { _, _ = in.Close(), out.Close() })
	return c, in, out
}

// TestDrain ends the input while requests are under way.
func TestDrain(t *testing.T) {
	const timeout = 10 * time.Second
	slow := handler{"slow": func(r *rpc.Request) {
		r.Go(func() {
			select {
			case <-time.After(time.Second):
				r.Reply("done")
			case <-r.Context().Done():
				r.Drop()
			}
		})
	}, "wait": func(r *rpc.Request) {
		r.Go(func() {
			<-r.WaitContext().Done()
			r.Reply("waited")
		})
	}, "for ever": func(r *rpc.Request) {
		r.Go(func() {
			<-r.Context().Done()
			r.Drop()
		})
	}}
	for _, test := range []struct {
		name, method string
		reads        bool // the peer reads its answers
		leaves       bool // the peer closes its other direction, too
		clean        bool
		end          time.Duration // the time that it takes
	}{
		{"answered", "slow", true, false, true, time.Second},
		{"a wait", "wait", true, false, true, 0},
		{"a request without end", "for ever", true, false, false, timeout},
		{"a peer that does not read", "slow", false, false, false, timeout},
		{"a peer that has gone", "slow", false, true, false, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, in, out := serveLines(t, slow, timeout)
				begin := time.Now()
				if _, err := fmt.Fprintf(in, `{"id":1,"method":%q}`, test.method); err != nil {
					t.Fatal(err)
				}
				_ = in.Close()
				if test.leaves {
					_ = out.Close()
				}
				answers := 0
				if test.reads {
					for lines := bufio.NewScanner(out); lines.Scan(); {
						answers++
					}
				}
				<-c.Context().Done()
				if took := time.Since(begin); took != test.end {
					t.Errorf("the end took %v, want %v", took, test.end)
				}
				if err := c.wait(t); !errors.Is(err, rpc.ErrPeerClosed) {
					t.Errorf("ended by %v", err)
				}
				if c.ClosedCleanly() != test.clean || (answers == 1) != test.clean {
					t.Errorf("closed cleanly: %v, %d answers", c.ClosedCleanly(), answers)
				}
			})
		})
	}
}

// TestDrainWithAnEvent ends the input while an event is written, which the peer does not read
// before it goes away. That is no clean end: the peer lacks the event.
func TestDrainWithAnEvent(t *testing.T) {
	for name, reads := range map[string]bool{"read": true, "not read": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, in, out := serveLines(t, handler{}, time.Minute)
				c.SetSources(&source{size: 100, left: 1})
				synctest.Wait() // the writer waits for the peer
				_ = in.Close()
				synctest.Wait()
				if reads {
					_, _ = io.Copy(io.Discard, out)
				} else {
					_ = out.Close()
				}
				<-c.Context().Done()
				_ = c.wait(t)
				if c.ClosedCleanly() != reads {
					t.Errorf("closed cleanly: %v", c.ClosedCleanly())
				}
			})
		})
	}
}

// TestEndedBeforeThePeerKnows delays what Ended does. Until then the peer finds its connection
// open, however it ends.
func TestEndedBeforeThePeerKnows(t *testing.T) {
	for name, end := range map[string]func(c *running, in io.Closer){
		"end of input": func(_ *running, in io.Closer) { _ = in.Close() },
		"closed here":  func(c *running, _ io.Closer) { c.Close(transport.Reason{}, errors.New("closed here")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan struct{})
				c, in, out := serveLinesWith(t, handler{}, &rpc.Options{FinishTimeout: time.Minute, Ended: func() { <-ended }})
				var open atomic.Bool
				open.Store(true)
				go func() {
					_, _ = io.Copy(io.Discard, out)
					open.Store(false)
				}()
				end(c, in)
				time.Sleep(time.Hour)
				if !open.Load() {
					t.Error("the peer saw the end first")
				}
				close(ended)
				_ = in.Close()
				_ = c.wait(t)
				synctest.Wait()
				if open.Load() {
					t.Error("the peer does not see the end")
				}
			})
		})
	}
}
