//go:build unix

package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/server"
	"execserver/transport"
)

// dialer makes connections in memory to a server in this program. Each of the first cuts
// connections breaks after the client has read size bytes.
type dialer struct {
	srv        *server.Server
	conns      sync.WaitGroup
	cuts, size int
	dials      atomic.Int32
}

func newDialer(t *testing.T, cuts, size int) *dialer {
	d := &dialer{srv: server.New(nil), cuts: cuts, size: size}
	t.Cleanup(func() {
		testkit.Shutdown(t, d.srv)
		d.conns.Wait()
	})
	return d
}

func (d *dialer) dial(context.Context) (transport.Conn, error) {
	ours, theirs := net.Pipe()
	d.conns.Go(func() { _ = d.srv.ServeConn(transport.NewStream(theirs)) })
	if int(d.dials.Add(1)) > d.cuts {
		return transport.NewStream(ours), nil
	}
	return transport.NewStream(&cutStream{ours, d.size}), nil
}

// cutStream breaks after it has been read for a number of bytes.
type cutStream struct {
	net.Conn
	left int
}

func (s *cutStream) Read(b []byte) (int, error) {
	if s.left == 0 {
		_ = s.Close()
		return 0, io.ErrUnexpectedEOF
	}
	n, err := s.Conn.Read(b[:min(len(b), s.left)])
	s.left -= n
	return n, err
}

// TestConnect breaks connections in the middle of a command's output, all of which
// arrives over later ones.
func TestConnect(t *testing.T) {
	t.Parallel()
	const cuts, size = 8, 1 << 20
	d := newDialer(t, cuts, size/cuts)
	env, err := client.Connect(background(t), d.dial, &client.Options{Compression: client.CompressNever})
	env = opened(t, env, err)
	var out patternChecker
	c := child(env, "pattern", strconv.Itoa(size))
	c.Stdout = &out
	err = c.Run()
	if exit, ok := errors.AsType[*client.ExitError](err); !ok || exit.ExitCode != 9 {
		t.Errorf("Run: %v", err)
	}
	if out.n != size || out.bad != nil {
		t.Errorf("%d bytes of %d: %v", out.n, size, out.bad)
	}
	// How many break depends on how the output is packed. A server that has not noticed the
	// end of a connection refuses the next one.
	if n := d.dials.Load(); n <= cuts/2 {
		t.Errorf("%d connections, %d of which were to break", n, cuts)
	}
}

// TestConnectFails has a dialer fail, the first time or once the connection has broken.
func TestConnectFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("the tunnel is closed")
	_, err := client.Connect(background(t), func(context.Context) (transport.Conn, error) { return nil, broken }, nil)
	if _, ok := errors.AsType[*client.DialError](err); !ok || !errors.Is(err, broken) ||
		err.Error() != "failed to connect to exec-server: the tunnel is closed" {
		t.Errorf("the first connection: %v", err)
	}

	_, err = client.Connect(background(t), func(context.Context) (transport.Conn, error) { return nil, nil }, nil)
	if _, ok := errors.AsType[*client.DialError](err); !ok {
		t.Errorf("neither a connection nor an error: %v", err)
	}

	// An error that another attempt would not change ends the Environment at once.
	d := newDialer(t, 1, 64<<10)
	refused := &transport.RefusedError{Status: http.StatusForbidden, Text: "go away"}
	dial := func(ctx context.Context) (transport.Conn, error) {
		if d.dials.Load() == 0 {
			return d.dial(ctx)
		}
		return nil, refused
	}
	env, err := client.Connect(background(t), dial, nil)
	env = opened(t, env, err)
	err = child(env, "pattern", "1000000").Run()
	if _, ok := errors.AsType[*client.LostError](err); !ok || !errors.Is(err, refused) {
		t.Errorf("Run: %v", err)
	}
	const text = "failed to connect to exec-server stream: the server refused the upgrade with status 403 Forbidden: go away"
	if err := env.Err(); !errors.Is(err, refused) || !strings.HasSuffix(err.Error(), text) {
		t.Errorf("Err: %v", err)
	}
}
