package slowlink_test

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"execserver/internal/testkit/slowlink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo serves connections that return what they receive, with the end.
func echo(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

func through(t *testing.T, opts slowlink.Options) (*slowlink.Link, net.Conn) {
	t.Helper()
	l, err := slowlink.Listen("127.0.0.1:0", echo(t), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	c, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return l, c
}

// TestDelay holds a link only against lower bounds, which a slow machine cannot break.
func TestDelay(t *testing.T) {
	t.Run("unlimited", func(t *testing.T) { delay(t, 0) })
	t.Run("20 Mbit/s", func(t *testing.T) { delay(t, 20_000_000) })
}

func delay(t *testing.T, bitsPerSecond int64) {
	const trip = 60 * time.Millisecond
	_, c := through(t, slowlink.Options{BitsPerSecond: bitsPerSecond, RoundTrip: trip})
	for range 3 {
		begin := time.Now()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took < trip {
			t.Errorf("a byte came back after %v, before %v", took, trip)
		}
	}
}

func TestRate(t *testing.T) {
	const size, rate = 250_000, 8_000_000
	l, c := through(t, slowlink.Options{BitsPerSecond: rate, RoundTrip: 10 * time.Millisecond})
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	begin := time.Now()
	go func() {
		_, _ = c.Write(data)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	back, err := io.ReadAll(c)
	if err != nil || sha256.Sum256(back) != sha256.Sum256(data) {
		t.Fatalf("%d bytes came back of %d: %v", len(back), len(data), err)
	}
	// The link may catch up 20 ms, and did nothing before.
	if took, least := time.Since(begin), size*8*time.Second/rate-20*time.Millisecond; took < least {
		t.Errorf("%d bytes took %v, less than %v", size, took, least)
	}
	if up, down := l.Bytes(); up != size || down != size {
		t.Errorf("the link counts %d bytes up and %d down, want %d", up, down, size)
	}
}

func TestCut(t *testing.T) {
	l, c := through(t, slowlink.Options{})
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	l.Cut()
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes after the cut", n)
	}
	again, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if _, err := again.Write([]byte("y")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(again, make([]byte, 1)); err != nil {
		t.Errorf("a new connection after the cut: %v", err)
	}
	if n := l.Opened(); n != 2 {
		t.Errorf("the link counts %d connections, want 2", n)
	}
}
