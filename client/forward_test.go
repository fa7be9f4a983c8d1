//go:build unix

package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"execserver/client"
	"execserver/internal/testkit"
)

// listenFar listens for connections that the server makes.
func listenFar(t testing.TB) *net.TCPListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.(*net.TCPListener)
}

// forwardedTo forwards a connection to a listener and returns both of its ends.
func forwardedTo(t testing.TB, env *client.Environment, l net.Listener) (near, far net.Conn) {
	t.Helper()
	near, err := env.DialContext(background(t), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = near.Close()
		_ = far.Close()
	})
	return near, far
}

// forwards skips a place whose server does not forward.
func forwards(t *testing.T, env *client.Environment) {
	t.Helper()
	needs(t, env, "tcpOpen", func() error {
		_, err := env.DialContext(background(t), "tcp", "127.0.0.1:1")
		return err
	})
}

// readAll reads until the end of a connection, for which it waits with patience.
func readAll(t testing.TB, conn net.Conn) string {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience))
	text, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("after %q: %v", text, err)
	}
	return string(text)
}

// TestDialContext has each end of a connection end it in each way.
func TestDialContext(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		forwards(t, env)
		l := listenFar(t)
		t.Run("half-close", func(t *testing.T) {
			near, far := forwardedTo(t, env, l)
			for _, ends := range [][2]net.Conn{{near, far}, {far, near}} {
				_, _ = ends[0].Write([]byte("one way"))
				if err := ends[0].(interface{ CloseWrite() error }).CloseWrite(); err != nil {
					t.Error(err)
				}
				if got := readAll(t, ends[1]); got != "one way" {
					t.Errorf("got %q", got)
				}
			}
			if _, err := near.Write([]byte("x")); err == nil {
				t.Error("written after CloseWrite")
			}
		})
		t.Run("close", func(t *testing.T) {
			for _, swapped := range []bool{false, true} {
				one, other := forwardedTo(t, env, l)
				if swapped {
					one, other = other, one
				}
				text := strings.Repeat("what was written before ", 4000)
				if _, err := one.Write([]byte(text)); err != nil {
					t.Error(err)
				}
				_ = one.Close()
				if got := readAll(t, other); got != text {
					t.Errorf("got %d bytes", len(got))
				}
				if !swapped {
					if _, err := one.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
						t.Errorf("read after Close: %v", err)
					}
				}
			}
		})
		t.Run("reset", func(t *testing.T) {
			near, far := forwardedTo(t, env, l)
			_, _ = far.Write([]byte("first this"))
			got := make([]byte, len("first this"))
			if _, err := io.ReadFull(near, got); err != nil {
				t.Fatal(err)
			}
			_ = far.(*net.TCPConn).SetLinger(0)
			_ = far.Close()
			_ = near.SetReadDeadline(time.Now().Add(testkit.Patience))
			if _, err := near.Read(got); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read: %v", err)
			}
		})
		t.Run("nobody listens", func(t *testing.T) {
			address := testkit.FreeAddress(t)
			_, err := env.DialContext(background(t), "tcp", address)
			if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "cannot connect to "+address) {
				t.Errorf("got %v", err)
			}
		})
		t.Run("unix", func(t *testing.T) {
			path := filepath.Join(testkit.SocketDir(t), "far")
			u, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer u.Close()
			near, err := env.DialContext(background(t), "unix", path)
			if err != nil {
				t.Fatal(err)
			}
			far, err := u.Accept()
			if err != nil {
				t.Fatal(err)
			}
			_, _ = near.Write([]byte("to a socket"))
			_ = near.Close()
			if got := readAll(t, far); got != "to a socket" {
				t.Errorf("got %q", got)
			}
			_ = far.Close()
		})
		t.Run("addresses", func(t *testing.T) {
			for _, address := range []string{"", "host", "host:http", "host:0", "host:70000", ":80"} {
				if _, err := env.DialContext(background(t), "tcp", address); err == nil {
					t.Errorf("%q was accepted", address)
				}
			}
			if _, err := env.DialContext(background(t), "udp", "127.0.0.1:1"); !errors.As(err, new(net.UnknownNetworkError)) {
				t.Errorf("udp: %v", err)
			}
		})
		t.Run("closed environment", func(t *testing.T) {
			near, far := forwardedTo(t, env, l)
			_ = env.Close()
			if _, err := near.Read(make([]byte, 1)); !errors.Is(err, client.ErrClosed) {
				t.Errorf("read: %v", err)
			}
			_ = far.SetReadDeadline(time.Now().Add(testkit.Patience))
			if _, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the far end: %v", err)
			}
			if _, err := env.DialContext(background(t), "tcp", l.Addr().String()); !errors.Is(err, client.ErrClosed) {
				t.Errorf("Forward: %v", err)
			}
		})
	})
}

// TestForwardedConn runs the tests that every net.Conn should pass.
func TestForwardedConn(t *testing.T) {
	t.Parallel()
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			if p.codex || p.name == "unix" || p.name == "stdio" {
				t.Skip("TestDialContext shows that it does not forward, or does as the others")
			}
			t.Parallel()
			env := p.open(t, nil)
			l := listenFar(t)
			nettest.TestConn(t, func() (near, far net.Conn, stop func(), err error) {
				near, err = env.DialContext(background(t), "tcp", l.Addr().String())
				if err != nil {
					return nil, nil, nil, err
				}
				far, err = l.Accept()
				return near, far, func() { _, _ = near.Close(), far.Close() }, err
			})
		})
	}
}

// TestForwardReaderThatStops leaves one connection unread while its far end sends without
// end. What the far end can send is bounded, and everything else goes on.
func TestForwardReaderThatStops(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		forwards(t, env)
		l := listenFar(t)
		_, far := forwardedTo(t, env, l)
		var sent atomic.Int64
		sending := make(chan struct{})
		go func() {
			defer close(sending)
			piece := make([]byte, 64<<10)
			for {
				n, err := far.Write(piece)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
		defer func() { <-sending }()
		defer far.Close()
		// The kernel's buffers on the way are at most some MiB each.
		var last int64
		quiet := time.Now()
		testkit.WaitFor(t, testkit.Patience, func() error {
			if now := sent.Load(); now != last || now == 0 {
				last, quiet = now, time.Now()
			}
			if time.Since(quiet) < 200*time.Millisecond {
				return fmt.Errorf("%d bytes were sent, and it goes on", last)
			}
			return nil
		})
		if last > 64<<20 {
			t.Errorf("%d bytes were sent that nobody reads", last)
		}
		near2, far2 := forwardedTo(t, env, l)
		data := make([]byte, 4<<20)
		go func() {
			_, _ = far2.Write(data)
			_ = far2.Close()
		}()
		if got := readAll(t, near2); len(got) != len(data) {
			t.Errorf("%d bytes beside it", len(got))
		}
		if out, err := child(env, "echo", "beside it").Output(); err != nil || string(out) != "beside it\n" {
			t.Errorf("a command beside it: %q, %v", out, err)
		}
	})
}

// TestForwardCancelled gives up a connection that is not made.
func TestForwardCancelled(t *testing.T) {
	t.Parallel()
	env := openWebSocket(t, nil)
	// A listener whose queue is full answers nobody.
	l := listenFar(t)
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { _ = syscall.Listen(int(fd), 0) }); err != nil {
		t.Fatal(err)
	}
	var waiting []net.Conn
	defer func() {
		for _, conn := range waiting {
			_ = conn.Close()
		}
	}()
	// The first connections may fit into the queue.
	for len(waiting) < 16 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		conn, err := env.DialContext(ctx, "tcp", l.Addr().String())
		cancel()
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			break
		}
		waiting = append(waiting, conn)
	}
	if len(waiting) == 16 {
		t.Skip("this system answers for a listener whose queue is full")
	}
	if out, err := child(env, "echo", "after it").Output(); err != nil || string(out) != "after it\n" {
		t.Errorf("a command after it: %q, %v", out, err)
	}
}

// random returns a reader of random bytes, the same for a seed.
func random(seed byte, n int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{seed}), n)
}

func sumOf(t testing.TB, r io.Reader) [32]byte {
	t.Helper()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		t.Error(err)
	}
	return [32]byte(h.Sum(nil))
}

// TestForward reaches an HTTP server through a listener of this machine, with 4 MiB in
// each direction at the same time, several times at once.
func TestForward(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	up, down := sumOf(t, random(1, size)), sumOf(t, random(2, size))
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		needs(t, env, "tcpOpen", func() error {
			_, err := env.Forward(background(t), "127.0.0.1:0", "tcp", "127.0.0.1:1")
			return err
		})
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
				t.Error(err)
			}
			var received [32]byte
			var wg sync.WaitGroup
			wg.Go(func() { received = sumOf(t, r.Body) })
			_, _ = io.Copy(w, random(2, size))
			wg.Wait()
			_, _ = w.Write(received[:])
		}))
		defer web.Close()
		f, err := env.Forward(background(t), ":0", "tcp", web.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if ip := f.Addr().(*net.TCPAddr).IP; !ip.IsLoopback() {
			t.Errorf("it listens at %s", f.Addr())
		}
		transport := new(http.Transport)
		defer transport.CloseIdleConnections()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				request, err := http.NewRequestWithContext(background(t), http.MethodPost, "http://"+f.Addr().String(), random(1, size))
				if err != nil {
					t.Error(err)
					return
				}
				response, err := transport.RoundTrip(request)
				if err != nil {
					t.Error(err)
					return
				}
				defer response.Body.Close()
				if got := sumOf(t, io.LimitReader(response.Body, size)); got != down {
					t.Error("what came down is not what was sent")
				}
				got, err := io.ReadAll(response.Body)
				if err != nil || !bytes.Equal(got, up[:]) {
					t.Errorf("what went up is not what was sent: %v", err)
				}
			})
		}
		wg.Wait()
	})
}

// TestForwardAfterReconnection breaks the connection to the server. What it carried ends,
// and the listener continues over the next connection.
func TestForwardAfterReconnection(t *testing.T) {
	t.Parallel()
	p := newProxy(t, serveWebSocket(t, nil))
	env, err := client.Dial(background(t), p.url, nil)
	env = opened(t, env, err)
	far := listenFar(t)
	f, err := env.Forward(background(t), testkit.FreeAddress(t), "tcp", far.Addr().String()) // which nobody else gets after Close
	if err != nil {
		t.Fatal(err)
	}
	pair := func() (near, other net.Conn) {
		t.Helper()
		near, err := net.Dial("tcp", f.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if other, err = far.Accept(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = near.Close()
			_ = other.Close()
		})
		return near, other
	}
	near, other := pair()
	p.cut()
	for _, conn := range []net.Conn{near, other} {
		_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it goes on: %v", err)
		}
	}
	near, other = pair()
	_, _ = other.Write([]byte("again"))
	_ = other.Close()
	if got := readAll(t, near); got != "again" {
		t.Errorf("got %q", got)
	}
	near, other = pair()
	_ = f.Close()
	rest := []net.Conn{near, other}
	// A child that is just being forked has a copy of the listener until it executes its own
	// program, and so a connection may be made that nobody accepts.
	if conn, err := net.Dial("tcp", f.Addr().String()); err == nil {
		t.Cleanup(func() { _ = conn.Close() })
		rest = append(rest, conn)
	} else if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("it listens after Close: %v", err)
	}
	for _, conn := range rest {
		_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it goes on after Close: %v", err)
		}
	}
}
