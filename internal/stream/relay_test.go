package stream_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/stream"
)

// TestPreface has a relay that says for how long to keep the stream when it closes its link. It does
// not matter to a link that falls silent.
func TestPreface(t *testing.T) {
	for _, c := range []struct {
		name          string
		keep          time.Duration // of the preface
		lose          func(*wire)
		after, before time.Duration // the stream ends
	}{
		{"closed", 90 * time.Second, (*wire).cut, 89 * time.Second, 91 * time.Second},
		{"closed, and kept for longer than the server keeps streams", time.Hour, (*wire).cut, 599 * time.Second, 601 * time.Second},
		{"closed, and says nothing", 0, (*wire).cut, 599 * time.Second, 601 * time.Second},
		{"silent", 90 * time.Second, (*wire).stall, 10 * time.Minute, 12 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				over := make(chan struct{})
				n := newNetwork(t, stream.ServerOptions{Keep: 10 * time.Minute, Handle: func(*stream.Conn) { <-over }})
				conn, err := stream.Dial(t.Context(), stream.Options{Link: func(ctx context.Context) (io.ReadWriteCloser, error) {
					rwc, err := n.link(ctx)
					if err == nil {
						_, err = rwc.Write(stream.Preface(c.keep))
					}
					return rwc, err
				}})
				if err != nil {
					t.Fatal(err)
				}
				defer n.close()
				defer close(over)
				synctest.Wait()
				n.last().cut() // a stream is resumed behind a preface, too
				time.Sleep(time.Second)
				synctest.Wait()
				if n.links() != 2 || n.server.Count() != 1 {
					t.Fatalf("%d links, %d streams", n.links(), n.server.Count())
				}
				n.setDown(true)
				c.lose(n.last())
				time.Sleep(c.after)
				synctest.Wait()
				if n.server.Count() != 1 {
					t.Error("the stream is gone early")
				}
				time.Sleep(c.before - c.after)
				synctest.Wait()
				if n.server.Count() != 0 {
					t.Error("the stream is still there")
				}
				_ = conn.Close()
			})
		})
	}
}

// TestPrefaceOfAnotherVersion is refused.
func TestPrefaceOfAnotherVersion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, stream.ServerOptions{Handle: func(*stream.Conn) {}})
		defer n.close()
		_, err := stream.Dial(t.Context(), stream.Options{Link: func(ctx context.Context) (io.ReadWriteCloser, error) {
			rwc, err := n.link(ctx)
			if err == nil {
				_, err = rwc.Write([]byte("\x00relay\x02\x00"))
			}
			return rwc, err
		}})
		if !errors.Is(err, stream.Version) {
			t.Errorf("the error is %v", err)
		}
	})
}

// TestConfirm asks which bytes the other program has read.
func TestConfirm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, dialed, accepted := pair(t, stream.Options{})
		var confirmed []uint64
		accepted.OnConfirm(func(n uint64) { confirmed = append(confirmed, n) })
		expect := func(what string, want ...uint64) {
			t.Helper()
			synctest.Wait()
			if len(confirmed) != len(want) || len(want) > 0 && confirmed[len(want)-1] != want[len(want)-1] {
				t.Errorf("%s: confirmed are %v, want %v", what, confirmed, want)
			}
		}
		accepted.Confirm(1)
		expect("nothing was written", 1)
		write(t, accepted, "xy")
		accepted.Confirm(2)
		expect("received, and not read", 1)
		time.Sleep(time.Minute)
		expect("received, and not read for a minute", 1)
		read(t, dialed, "x")
		time.Sleep(time.Minute)
		expect("read in part", 1)
		n.setDown(true)
		n.last().cut()
		read(t, dialed, "y")
		time.Sleep(time.Minute)
		accepted.Confirm(3)
		expect("read, and without a link", 1)
		n.setDown(false)
		time.Sleep(time.Minute)
		expect("over another link", 1, 2, 3)
		n.setDown(true)
		n.last().cut()
		synctest.Wait()
		accepted.Confirm(4)
		accepted.Confirm(4)
		expect("everything was read, and without a link", 1, 2, 3)
		n.setDown(false)
		time.Sleep(time.Minute)
		expect("it lives", 1, 2, 3, 4)
	})
}
