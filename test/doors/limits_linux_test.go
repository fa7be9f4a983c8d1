package doors

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/server"
)

// relay forwards connections to a server, and can break them.
type relay struct {
	listener net.Listener
	server   string
	wg       sync.WaitGroup

	mu     sync.Mutex
	broken bool // those that come are closed at once
	near   []net.Conn
	far    []net.Conn
}

func newRelay(t *testing.T, server string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, server: server}
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		r.lose(true)
		r.wg.Wait()
	})
	return r
}

func (r *relay) url() string { return "ws://" + r.listener.Addr().String() }

func (r *relay) accept() {
	for {
		near, err := r.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", r.server)
		r.mu.Lock()
		if r.broken || err != nil {
			_ = near.Close()
			if err == nil {
				_ = far.Close()
			}
		} else {
			r.near, r.far = append(r.near, near), append(r.far, far)
			// The end of one is not the end of the other.
			r.wg.Go(func() { _, _ = io.Copy(far, near) })
			r.wg.Go(func() { _, _ = io.Copy(near, far) })
		}
		r.mu.Unlock()
	}
}

// lose closes the client's ends of all connections, and the server's if it is to notice.
func (r *relay) lose(both bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = true
	for _, conn := range r.near {
		_ = conn.Close()
	}
	r.near = nil
	if both {
		for _, conn := range r.far {
			_ = conn.Close()
		}
		r.far = nil
	}
}

func (r *relay) mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = false
}

// TestComeBackAtLimit connects as many clients as the server admits, and as many idle
// connections. A client that has lost its connection resumes its session nevertheless.
// The server refuses only new sessions.
func TestComeBackAtLimit(t *testing.T) {
	for _, test := range []struct {
		name    string
		notices bool // the server sees that the connection is lost, and serves somebody else
	}{
		{"the place is taken", true},
		{"the server has not noticed", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, url := full(t, 2)
			link := newRelay(t, address)
			env := dial(t, link.url())
			command := env.Command(t.Context(), "/bin/sh", "-c", "read line; echo $line")
			stdin, err := command.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			output := new(testkit.Buffer)
			command.Stdout = output
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			dial(t, url)
			link.lose(test.notices)
			if test.notices {
				testkit.WaitFor(t, testkit.Patience, func() error {
					third, err := client.Dial(t.Context(), url, nil)
					if err == nil {
						t.Cleanup(func() { _ = third.Close() })
					}
					return err
				})
			}
			if _, err := client.Dial(t.Context(), url, nil); err == nil || !strings.Contains(err.Error(), "the server has its limit of 2 connections") {
				t.Errorf("who is one too many gets %v", err)
			}
			for range 20 {
				if status, body := idle(t, address); status != 101 {
					t.Fatalf("who connects and does nothing gets %d %s", status, body)
				}
			}
			link.mend()
			begun := time.Now()
			if _, err := io.WriteString(stdin, "back\n"); err != nil {
				t.Fatal(err)
			}
			if err := command.Wait(); err != nil || output.String() != "back\n" {
				t.Errorf("the command ends with %v and has written %q", err, output)
			}
			if took := time.Since(begun); took > slack {
				t.Errorf("the client came back after %v", took)
			}
		})
	}
}

// full starts a server in this program that has room for so many connections.
func full(t *testing.T, connections int) (address, url string) {
	t.Helper()
	srv := server.New(&server.Options{MaxConnections: connections, Auth: server.Unauthenticated})
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.ServeWebSocket(listener) // until Shutdown
	address = listener.Addr().String()
	return address, "ws://" + address
}

func dial(t *testing.T, url string) *client.Environment {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), testkit.Patience, errors.New("no connection"))
	defer cancel()
	env, err := client.Dial(ctx, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Close() })
	return env
}

// idle makes a connection and never initializes it.
func idle(t *testing.T, address string) (status int, body string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, testkit.Patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	_, _ = io.WriteString(conn, upgrade(address, ""))
	return answer(conn)
}
