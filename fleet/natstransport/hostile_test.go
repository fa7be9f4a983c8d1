//go:build unix

package natstransport_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/fleet/internal/natstest"
	"execserver/fleet/natstransport"
	"execserver/internal/testkit"
)

// hostile is a machine that answers requests for connections, and then does what it likes.
type hostile struct {
	nc  *nats.Conn
	key string // of the last connection
}

// newHostile lets a machine announce a window.
func newHostile(t *testing.T, url, name string, window int64) *hostile {
	t.Helper()
	h := &hostile{nc: natstest.Connect(t, url)}
	_, err := h.nc.Subscribe("exec.open."+name, func(m *nats.Msg) {
		_, rest, _ := strings.Cut(string(m.Data), `"key":"`)
		h.key, _, _ = strings.Cut(rest, `"`)
		_ = m.Respond([]byte(`{"version":1,"instance":"i","window":` + strconv.FormatInt(window, 10) + `}`))
	})
	if err == nil {
		err = h.nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestFlood has a machine send small frames without end: to its own connection, and to
// connections that there are not. A connection to another machine goes on.
func TestFlood(t *testing.T) {
	url := natstest.Serve(t, nil).ClientURL()
	p := newPair(t, url, url, nil)
	far, near := p.connect(t, nil)
	red := newHostile(t, url, "red", 1<<20)
	if _, err := p.dialer.Dial(t.Context(), "red", natstransport.Call{}); err != nil {
		t.Fatal(err)
	}
	dialer, _, _ := strings.Cut(red.key, ".")
	var stop atomic.Bool
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		for n := uint64(1); !stop.Load(); n++ {
			frame := append(binary.BigEndian.AppendUint64([]byte{'d'}, n), 0)
			_ = red.nc.Publish("exec.out.red."+red.key, frame)
			_ = red.nc.Publish("exec.out.red."+dialer+".nosuch", frame)
		}
	}()
	defer func() {
		stop.Store(true)
		<-flooded
	}()
	for start, i := time.Now(), 0; time.Since(start) < time.Second || i < 200; i++ {
		if err := far.Write(fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
		if got, err := near.Read(nil); err != nil || string(got) != fmt.Sprint(i) {
			t.Fatalf("%q, %v", got, err)
		}
		if err := near.Write(fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
		if got, err := far.Read(nil); err != nil || string(got) != fmt.Sprint(i) {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

// TestSmallFrames has a machine send a window in frames of one byte to a side that does not
// read. They take about as much memory as the window.
func TestSmallFrames(t *testing.T) {
	const window = 1 << 20
	url := natstest.Serve(t, nil).ClientURL()
	dialer := natstransport.NewDialer(natstest.Connect(t, url), &natstransport.Options{Window: window})
	t.Cleanup(dialer.Close)
	red := newHostile(t, url, "red", window)
	c, err := dialer.Dial(t.Context(), "red", natstransport.Call{})
	if err != nil {
		t.Fatal(err)
	}
	before := heap()
	for n := uint64(1); n < window; n++ {
		if err := red.nc.Publish("exec.out.red."+red.key, append(binary.BigEndian.AppendUint64([]byte{'d'}, n), 0)); err != nil {
			t.Fatal(err)
		}
		if n%4096 == 0 { // as fast as they are taken, so that none is lost
			testkit.WaitFor(t, testkit.Patience, func() error {
				if got := c.Received(); got < n {
					return fmt.Errorf("%d of %d bytes arrived", got, n)
				}
				return nil
			})
		}
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if got := c.Received(); got != window-1 {
			return fmt.Errorf("%d bytes arrived", got)
		}
		return nil
	})
	if grown := heap() - before; grown > 3*window {
		t.Errorf("a window of %d bytes takes %d bytes of memory", window, grown)
	}
	runtime.KeepAlive(c)
}

func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// TestGreatWindow has a machine announce room without end, and read nothing.
func TestGreatWindow(t *testing.T) {
	url := natstest.Serve(t, nil).ClientURL()
	dialer := natstransport.NewDialer(natstest.Connect(t, url), nil)
	t.Cleanup(dialer.Close)
	newHostile(t, url, "red", 1<<60)
	c, err := dialer.Dial(t.Context(), "red", natstransport.Call{})
	if err != nil {
		t.Fatal(err)
	}
	var wrote atomic.Int64
	ended := make(chan error, 1)
	go func() {
		msg := make([]byte, 1<<20)
		for {
			if err := c.Write(msg); err != nil {
				ended <- err
				return
			}
			wrote.Add(int64(len(msg)))
		}
	}()
	// It gives no sign of life either, so the connection ends.
	if err := await(t, "the end", ended); err == nil {
		t.Error("no error")
	}
	if wrote.Load() > 4<<20 {
		t.Errorf("%d bytes went to a machine that has read nothing", wrote.Load())
	}
}

// TestHeaders sends the machine a request and a frame with headers, as JetStream does when it
// is made to answer at the machine's subjects.
func TestHeaders(t *testing.T) {
	url := natstest.Serve(t, nil).ClientURL()
	p := newPair(t, url, url, nil)
	far, near := p.connect(t, nil)
	nc := natstest.Connect(t, url)
	send := func(subject, data string) {
		t.Helper()
		if err := nc.PublishMsg(&nats.Msg{Subject: subject, Data: []byte(data), Header: nats.Header{"Nats-Stream": {"KV"}}}); err != nil {
			t.Fatal(err)
		}
	}
	var key atomic.Value
	_, err := nc.Subscribe("exec.in.box.first.>", func(m *nats.Msg) { key.CompareAndSwap(nil, m.Subject) })
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := far.Write([]byte("one")); err != nil {
		t.Fatal(err)
	}
	if got, err := near.Read(nil); err != nil || string(got) != "one" {
		t.Fatalf("%q, %v", got, err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if key.Load() == nil {
			return fmt.Errorf("no frame was seen")
		}
		return nil
	})
	send(key.Load().(string), "x\x00\x00\x00\x00\x00\x00\x00\x02\x03\xe8") // the end of the connection
	send("exec.open.box", `{"version":1,"key":"evil.evil","window":1048576,"hello":{"all":true}}`)
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	// Both would have been handled before what follows.
	again, nearAgain := p.connect(t, nil)
	if nearAgain.Remote() != "a test" {
		t.Errorf("a connection of %q came", nearAgain.Remote())
	}
	for _, one := range []*natstransport.Conn{far, again} {
		if err := one.Write([]byte("two")); err != nil {
			t.Fatal(err)
		}
	}
	for _, one := range []*natstransport.Conn{near, nearAgain} {
		if got, err := one.Read(nil); err != nil || string(got) != "two" {
			t.Errorf("%q, %v", got, err)
		}
	}
}
