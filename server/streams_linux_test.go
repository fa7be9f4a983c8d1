package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	links "execserver/internal/stream"
	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/internal/testkit/transcript"
	"execserver/protocol"
	"execserver/server"
)

// road makes links to a unix socket, which a test cuts.
type road struct {
	dial func() *net.UnixConn
	most int // bytes of a link in both directions; 0 for any number

	mu      sync.Mutex
	blocked bool
	cuts    int // still to make
	now     *roadLink
}

type roadLink struct {
	net.Conn
	road *road
	left int
}

func (r *road) link(context.Context) (io.ReadWriteCloser, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blocked {
		return nil, errors.New("there is no road")
	}
	l := &roadLink{Conn: r.dial(), road: r, left: 1 << 40}
	_ = l.SetDeadline(time.Time{})
	if r.cuts > 0 && r.most > 0 {
		l.left = rand.IntN(r.most)
	}
	r.now = l
	return l, nil
}

// use counts bytes, and cuts the link after the last one.
func (l *roadLink) use(n int) {
	l.road.mu.Lock()
	defer l.road.mu.Unlock()
	if l.left -= n; l.left <= 0 && l.road.cuts > 0 && l.road.now == l {
		l.road.cuts--
		_ = l.Conn.Close()
	}
}

func (l *roadLink) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	l.use(n)
	return n, err
}

func (l *roadLink) Write(b []byte) (int, error) {
	n, err := l.Conn.Write(b)
	l.use(n)
	return n, err
}

// block cuts the road.
func (r *road) block() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocked = true
	_ = r.now.Conn.Close()
}

// open begins a stream.
func (r *road) open(t *testing.T) *links.Conn {
	t.Helper()
	c, err := links.Dial(testContext(t), links.Options{Link: r.link})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		r.mu.Lock()
		r.blocked = true
		r.mu.Unlock()
	})
	return c
}

// overStream is a client over a connection, with a session.
func overStream(t *testing.T, c io.ReadWriteCloser, end func() error, resume string, notify *follower) *testclient.Conn {
	t.Helper()
	conn := testclient.New(transcript.NewLines(c, c, end, c.Close), notify.notify)
	t.Cleanup(conn.Drop)
	p := protocol.InitializeParams{ClientName: "test"}
	if resume != "" {
		p.ResumeSessionID = &resume
	}
	if err := conn.Handshake(testContext(t), p); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestStreamCuts sends bytes to cat and back, over links that are cut 200 times.
func TestStreamCuts(t *testing.T) {
	t.Parallel()
	_, dial := serveUnix(t, nil)
	r := &road{dial: dial, most: 100 << 10, cuts: 200}
	c := r.open(t)
	f := newFollower()
	var got bytes.Buffer
	f.data["cat"] = &got
	conn := overStream(t, c, c.CloseWrite, "", f)
	call(t, conn, protocol.MethodStart, protocol.StartParams{
		ProcessID: "cat", Argv: []string{"/bin/cat"}, Env: map[string]string{}, Cwd: protocol.OSPath("/"), PipeStdin: true,
	}, nil)
	var sent bytes.Buffer
	chunk := make([]byte, 60<<10)
	random := rand.NewChaCha8([32]byte{1})
	for n := 0; ; n++ {
		r.mu.Lock()
		left := r.cuts
		r.mu.Unlock()
		if left == 0 {
			break
		}
		_, _ = random.Read(chunk)
		sent.Write(chunk)
		call(t, conn, protocol.MethodWrite, map[string]any{"processId": "cat", "chunk": chunk, "writeId": fmt.Sprint(n)}, nil)
	}
	call(t, conn, protocol.MethodCloseStdin, map[string]any{"processId": "cat"}, nil)
	f.waitClosed(t, "cat")
	if !bytes.Equal(sent.Bytes(), got.Bytes()) {
		t.Errorf("%d bytes have come back, of %d, or others", got.Len(), sent.Len())
	}
	if f.dropped["cat"] != 0 {
		t.Errorf("%d bytes were dropped", f.dropped["cat"])
	}
}

// TestStreamWindowIsNotReceived ends a stream in whose window output waits that its client has not
// read. The client that resumes the session gets it, although the server retains little.
func TestStreamWindowIsNotReceived(t *testing.T) {
	t.Parallel()
	srv, dial := serveUnix(t, &server.Options{StreamKeep: time.Second, Session: server.SessionOptions{RetainedBytes: 64 << 10, DetachedTTL: time.Hour}})
	r := &road{dial: dial}
	c := r.open(t)
	gate := newHeldFollower() // reads nothing more after the answers
	conn := overStream(t, c, c.CloseWrite, "", gate)
	const all = 600_000
	call(t, conn, protocol.MethodStart, protocol.StartParams{
		ProcessID: "p", Argv: []string{"/bin/sh", "-c", fmt.Sprintf("read x; head -c %d /dev/zero", all)}, Cwd: protocol.OSPath("/"), PipeStdin: true,
		Env: map[string]string{"PATH": "/usr/bin:/bin"},
	}, nil)
	conn.Pause()
	unpause := sync.OnceFunc(func() {
		gate.release()
		conn.Unpause()
	})
	t.Cleanup(unpause)
	if _, err := conn.Begin(protocol.MethodWrite, map[string]any{"processId": "p", "chunk": []byte("\n"), "writeId": "1"}); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error { // until the process waits for room
		if s := srv.Stats(); s.Stalls == 0 {
			return fmt.Errorf("%d bytes of output, and no stall", s.OutputBytes)
		}
		return nil
	})
	r.block()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if s := srv.Stats(); s.SessionsDetached != 1 {
			return fmt.Errorf("%d sessions are detached", s.SessionsDetached)
		}
		return nil
	})
	unpause()
	f := newFollower()
	plain := dial()
	again := overStream(t, plain, plain.CloseWrite, conn.SessionID, f)
	f.waitClosed(t, "p")
	if f.bytes["p"] != all || f.dropped["p"] != 0 {
		t.Errorf("%d bytes have come, and %d were dropped", f.bytes["p"], f.dropped["p"])
	}
	again.Drop()
	<-c.Done()
	if err := c.Err(); err == nil {
		t.Error("the stream has ended well")
	}
}

// TestStreamTakenOver replaces a link that the server takes to be alive.
func TestStreamTakenOver(t *testing.T) {
	t.Parallel()
	srv, dial := serveUnix(t, nil)
	r := &road{dial: dial}
	c := r.open(t)
	conn := overStream(t, c, c.CloseWrite, "", newFollower())
	for range 5 {
		r.mu.Lock()
		kept := r.now.Conn.(*net.UnixConn)
		file, err := kept.File()
		r.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		_ = kept.Close() // which the server does not see, because file holds the connection
		call(t, conn, protocol.MethodEnvironmentStatus, nil, nil)
		_ = file.Close()
	}
	if s := srv.Stats(); s.SessionsCreated != 1 || s.SessionsAttached != 1 || s.Opened != 1 {
		t.Errorf("%+v", s)
	}
}

// TestStreamSessionIsTakenOver resumes the session of a stream that has no link.
func TestStreamSessionIsTakenOver(t *testing.T) {
	t.Parallel()
	_, dial := serveUnix(t, &server.Options{ProbeTimeout: time.Second})
	r := &road{dial: dial}
	c := r.open(t)
	conn := overStream(t, c, c.CloseWrite, "", newFollower())
	other := func() error {
		plain := dial()
		again := testclient.New(transcript.NewLines(plain, plain, plain.CloseWrite, plain.Close), newFollower().notify)
		t.Cleanup(again.Drop)
		return again.Handshake(testContext(t), protocol.InitializeParams{ClientName: "other", ResumeSessionID: &conn.SessionID})
	}
	if refused, ok := errors.AsType[*protocol.Error](other()); !ok || refused.Code != protocol.CodeSessionAttached {
		t.Errorf("while its client lives: %v", refused)
	}
	r.block()
	if err := other(); err != nil {
		t.Errorf("without a link: %v", err)
	}
}

// TestStreamsAreBounded begins more streams than one user may have.
func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	_, dial := serveUnix(t, nil)
	r := &road{dial: dial}
	for n := 0; ; n++ {
		c, err := links.Dial(testContext(t), links.Options{Link: r.link})
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
			continue
		}
		if n != 32 || !errors.Is(err, links.Full) || !strings.Contains(err.Error(), "keeps no more streams") {
			t.Errorf("stream %d: %v", n, err)
		}
		return
	}
}

// TestStreamShutdown shuts a server down that has streams with a link, without one, and links in
// their handshake. The clients that can be reached learn of it.
func TestStreamShutdown(t *testing.T) {
	t.Parallel()
	srv, dial := serveUnix(t, nil)
	r, away := &road{dial: dial}, &road{dial: dial}
	f := newFollower()
	c := r.open(t)
	conn := overStream(t, c, c.CloseWrite, "", f)
	lost := away.open(t)
	overStream(t, lost, lost.CloseWrite, "", newFollower())
	away.block()
	half := dial()
	if _, err := io.WriteString(half, "\x00stre"); err != nil {
		t.Fatal(err)
	}
	testkit.Shutdown(t, srv)
	await1(t, conn.Done())
	f.mu.Lock()
	if len(f.others) != 1 || f.others[0] != protocol.NotificationSessionEnded {
		t.Errorf("the client was told %q", f.others)
	}
	f.mu.Unlock()
	if _, err := io.Copy(io.Discard, half); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}

// TestStreamFlood makes many connections that begin the handshake of a link and go no further.
func TestStreamFlood(t *testing.T) {
	t.Parallel()
	srv, dial := serveUnix(t, nil)
	server.LimitPending(srv, 20)
	for i := range 100 {
		// The server may have dropped it for a newer one already.
		if _, err := io.WriteString(dial(), "\x00stream\x01\x00"[:1+i%9]); err != nil && !errors.Is(err, syscall.EPIPE) {
			t.Fatal(err)
		}
	}
	r := &road{dial: dial}
	c := r.open(t)
	call(t, overStream(t, c, c.CloseWrite, "", newFollower()), protocol.MethodEnvironmentStatus, nil, nil)
}

// TestStreamGarbage sends bytes that are not a handshake.
func TestStreamGarbage(t *testing.T) {
	t.Parallel()
	_, dial := serveUnix(t, nil)
	for _, text := range []string{"\x00garbage that is long enough", "\x00stream\x07", "\x00relay\x07\x00"} {
		conn := dial()
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		if err != nil && !errors.Is(err, syscall.ECONNRESET) || text[1] != 'g' && !bytes.Equal(answer, append([]byte("\x00stream\x01"), byte(links.Version))) {
			t.Errorf("%q is answered with %q, %v", text, answer, err)
		}
	}
}

// TestSystemStreamOfOthers has one user resume the stream of another, and a user connect who may not.
func TestSystemStreamOfOthers(t *testing.T) {
	testkit.System(t, testkit.Root)
	for _, admitted := range []bool{true, false} {
		opts := new(server.Options)
		if admitted {
			opts.Peers = &server.Peers{UIDs: []uint{61234}}
		}
		srv := server.New(opts)
		t.Cleanup(func() { testkit.Shutdown(t, srv) })
		at := webSocketOnUnix{listenUnix(t, srv).(unixServer).path}
		stranger := func(ctx context.Context) (io.ReadWriteCloser, error) { return at.DialContext(ctx, "", "") }
		if !admitted {
			if _, err := links.Dial(testContext(t), links.Options{Link: stranger}); !errors.Is(err, links.Denied) {
				t.Errorf("the error is %v", err)
			}
			continue
		}
		var first net.Conn
		c, err := links.Dial(testContext(t), links.Options{Link: func(ctx context.Context) (io.ReadWriteCloser, error) {
			if first != nil {
				return stranger(ctx)
			}
			var err error
			first, err = net.Dial("unix", at.path)
			return first, err
		}})
		if err != nil {
			t.Fatal(err)
		}
		_ = first.Close()
		await1(t, c.Done())
		if err := c.Err(); !errors.Is(err, links.Expired) {
			t.Errorf("another user resumes: %v", err)
		}
	}
}
