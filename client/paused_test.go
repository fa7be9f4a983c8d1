//go:build unix

package client_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
	"execserver/transport"
)

// pauseVariable says for how long a consumer pauses in tests against the
// released server. Its heartbeats are those of the default options, so only a
// pause above a minute proves something.
const pauseVariable = "EXEC_SERVER_TEST_PAUSE"

// floodServer is a WebSocket server without acknowledgements. Its only process
// writes size bytes; then it exits. One writer sends replies and output in turn,
// and it blocks while the client does not read, as in the released server.
type floodServer struct {
	t     *testing.T
	size  int
	dials atomic.Int32
	sent  atomic.Int64 // bytes of output
}

func (s *floodServer) serve() (url string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	var conns sync.WaitGroup
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.dials.Add(1)
		conn, err := transport.Upgrade(w, r, 0)
		if err != nil {
			return
		}
		conns.Go(func() { s.talk(conn) })
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = web.Serve(l)
	}()
	s.t.Cleanup(func() {
		_ = web.Close()
		<-done
		conns.Wait()
	})
	return "ws://" + l.Addr().String()
}

func (s *floodServer) talk(conn transport.Conn) {
	defer conn.Close(transport.Reason{})
	replies, over := make(chan string, 100), make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { s.write(conn, replies, over) })
	defer writer.Wait()
	defer close(over)
	for {
		text, err := conn.Read(nil)
		if err != nil {
			return
		}
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct{ ProcessID string }
		}
		if err := json.Unmarshal(text, &m); err != nil {
			s.t.Errorf("the client sent %s: %v", text, err)
			return
		}
		result := ""
		switch m.Method {
		case "process/ack":
			s.t.Error("the client acknowledges, and the server cannot take it")
			return
		case "initialize":
			result = `{"sessionId":"s","environmentInfo":{"shell":{"name":"sh","path":"/bin/sh"},"cwd":"file:///","platformOs":"linux"}}`
		case "process/start":
			result = fmt.Sprintf(`{"processId":%q}`, m.Params.ProcessID)
		case "process/terminate":
			result = `{"running":false}`
		case "fs/getMetadata":
			result = `{"isDirectory":true,"isFile":false,"isSymlink":false,"size":0}`
		}
		if m.ID != nil {
			replies <- fmt.Sprintf(`{"id":%s,"result":%s}`, m.ID, result)
		}
	}
}

// write sends replies, and the output of the process after its start.
func (s *floodServer) write(conn transport.Conn, replies <-chan string, over <-chan struct{}) {
	const piece = 64 << 10
	seq, left, started := 0, s.size, false
	text := strings.Repeat("eHh4", piece/3) // "xxx"
	for {
		message := ""
		if started && left > 0 {
			select {
			case message = <-replies:
			case <-over:
				return
			default:
			}
		} else {
			select {
			case message = <-replies:
			case <-over:
				return
			}
		}
		messages := []string{message}
		ends := false
		switch {
		case strings.Contains(message, "processId"):
			started = true
		case strings.Contains(message, "running"):
			ends, left = left > 0, 0
		case message == "":
			seq++
			left -= piece / 3 * 3
			ends = left <= 0
			messages = []string{fmt.Sprintf(`{"method":"process/output","params":{"processId":"1","seq":%d,"stream":"stdout","chunk":%q}}`, seq, text)}
		}
		if ends {
			messages = append(messages,
				fmt.Sprintf(`{"method":"process/exited","params":{"processId":"1","seq":%d,"exitCode":3,"sandboxDenied":false}}`, seq+1),
				fmt.Sprintf(`{"method":"process/closed","params":{"processId":"1","seq":%d}}`, seq+2))
		}
		for _, m := range messages {
			if conn.Write([]byte(m)) != nil {
				return
			}
		}
		if message == "" {
			s.sent.Add(piece / 3 * 3)
		}
	}
}

// stall waits until the server has not been able to send output for a while.
func (s *floodServer) stall(interval, while time.Duration) {
	for last, since := int64(-1), time.Now(); time.Since(since) < while; <-time.After(interval) {
		if sent := s.sent.Load(); sent != last {
			last, since = sent, time.Now()
		}
	}
}

// takeAll reads the rest of an output of x's and waits for the process, which
// must have written size bytes and ended with the code 3.
func takeAll(t *testing.T, c *client.Cmd, stdout io.Reader, taken, size int) {
	t.Helper()
	testkit.Within(t, "the output", func() {
		buf := make([]byte, 1<<20)
		for {
			n, err := stdout.Read(buf)
			if i := len(bytes.TrimLeft(buf[:n], "x")); i > 0 {
				t.Errorf("the output is damaged after %d bytes", taken+n-i)
				return
			}
			taken += n
			if err != nil {
				if err != io.EOF {
					t.Errorf("the output ends with %v", err)
				}
				break
			}
		}
		if taken != size {
			t.Errorf("%d bytes of output, not %d", taken, size)
		}
		if err := c.Wait(); err == nil || c.Exit == nil || c.Exit.ExitCode != 3 {
			t.Errorf("Wait: %v", err)
		}
	})
}

// A consumer may pause for as long as it likes, whatever the server can do:
// nothing is lost, the connection stays, and calls are answered meanwhile. The test runs alone:
// a connection whose answers take longer than the silence that it bears is replaced.
func TestConsumerPauses(t *testing.T) {
	const interval = 100 * time.Millisecond
	const pause = 6 * interval // the silence that ends a connection is half of it
	// All of it fits within what the client takes for the sake of a call, however late the server
	// answers that.
	const size = 60 << 20 / (64 << 10 / 3 * 3) * (64 << 10 / 3 * 3)
	s := &floodServer{t: t, size: size}
	opts := &client.Options{}
	client.SetPingInterval(opts, interval)
	env, err := client.Dial(background(t), s.serve(), opts)
	opened(t, env, err)
	c := env.Command(background(t), "flood")
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stdout, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	for calls := range 4 {
		s.stall(interval, pause)
		if calls == 0 {
			if sent := s.sent.Load(); sent > 40<<20 {
				t.Errorf("the client lets %d bytes come, and nobody takes them", sent)
			}
		}
		testkit.Within(t, "a call", func() {
			if _, err := env.FS("/").Stat("."); err != nil {
				t.Errorf("Stat: %v", err)
			}
		})
	}
	takeAll(t, c, stdout, 1000, size)
	if n := s.dials.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// A process is ended, and its ending told, while its consumer pauses.
func TestKillWhileConsumerPauses(t *testing.T) {
	t.Parallel()
	s := &floodServer{t: t, size: 1 << 40}
	env, err := client.Dial(background(t), s.serve(), nil)
	opened(t, env, err)
	ctx, cancel := context.WithCancel(background(t))
	c := env.Command(ctx, "flood")
	if _, err := c.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	s.stall(20*time.Millisecond, 100*time.Millisecond)
	cancel()
	testkit.Within(t, "Wait", func() {
		if err := c.Wait(); c.Exit == nil || c.Exit.ExitCode != 3 {
			t.Errorf("Wait: %v", err)
		}
	})
}

// A server that takes acknowledgements keeps what does not fit here, however
// much it retains: it is read again when the consumer goes on.
func TestConsumerPausesBeforeMuchRetained(t *testing.T) {
	t.Parallel()
	if testkit.RaceEnabled {
		t.Skip("moves 72 MiB, in which the race detector sees nothing new")
	}
	const size = 72 << 20
	srv := &server.Options{Session: server.SessionOptions{RetainedBytes: 2 * size}}
	env, err := client.Dial(background(t), serveWebSocket(t, srv), nil)
	opened(t, env, err)
	c := child(env, "pattern", fmt.Sprint(size))
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		r, err := c.Read(background(t), 1<<40, 0)
		if err == nil && r.Exit == nil {
			err = errors.New("the process writes")
		}
		return err
	})
	var check patternChecker
	testkit.Within(t, "the output", func() {
		if _, err := io.Copy(&check, stdout); err != nil || check.n != size {
			t.Errorf("%d bytes of output: %v", check.n, err)
		}
		if err := c.Wait(); c.Exit == nil || c.Exit.ExitCode != 9 {
			t.Errorf("Wait: %v", err)
		}
	})
}

// The client drops output that arrives while its log is full, and reads it again as soon as the
// consumer has taken half of the log, although the server sends nothing more.
func TestFullLogIsReadAgain(t *testing.T) {
	t.Parallel()
	if testkit.RaceEnabled {
		t.Skip("moves 68 MiB, in which the race detector sees nothing new")
	}
	const size, n = 1 << 20, 68 // the client holds 64 MiB
	piece := strings.Repeat("x", size)
	f := newFake(t, func(c *fakeConn) {
		if !c.shake("processAck") {
			return
		}
		id, _ := c.start()
		for seq := uint64(1); seq <= n; seq++ {
			c.output(id, seq, piece)
		}
		for {
			m, ok := c.next()
			switch {
			case !ok:
				return
			case m.Method == protocol.MethodRead && m.Params.AfterSeq >= n:
				c.reply(m, exitedAnswer(n+3))
			case m.Method == protocol.MethodRead:
				seq := m.Params.AfterSeq + 1
				c.reply(m, readAnswer(seq+1, object{"seq": seq, "stream": "stdout", "chunk": []byte(piece)}))
			case m.ID != nil:
				c.reply(m, fileAnswer)
			}
		}
	})
	env := f.dial(nil)
	c := env.Command(background(t), "x")
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := env.FS("/").Stat("file"); err != nil { // the answer comes after the output
		t.Fatal(err)
	}
	testkit.Within(t, "the output", func() {
		if got, err := io.Copy(io.Discard, stdout); got != n*size || err != nil {
			t.Errorf("%d bytes of output: %v", got, err)
		}
	})
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}

// An unread pipe does not delay the other stream, even at a server without acknowledgements: the
// client does not retain that stream's output for it.
func TestOneStreamPasses(t *testing.T) {
	t.Parallel()
	if testkit.RaceEnabled {
		t.Skip("moves 80 MiB, in which the race detector sees nothing new")
	}
	const size, n = 1 << 20, 80 // the client holds 64 MiB
	piece := strings.Repeat("x", size)
	f := newFake(t, func(c *fakeConn) {
		if !c.shake() {
			return
		}
		id, _ := c.start()
		c.output(id, 1, "waits")
		for seq := uint64(2); seq <= n+1; seq++ {
			c.notify(protocol.NotificationOutput, object{"processId": id, "seq": seq, "stream": "stderr", "chunk": []byte(piece)})
		}
		c.exited(id, n+2, 0)
		c.closed(id, n+3)
		c.drain()
	})
	c := f.dial(nil).Command(background(t), "x")
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	passed := 0
	c.Stderr = writerFunc(func(b []byte) (int, error) { passed += len(b); return len(b), nil })
	testkit.Within(t, "Run", func() {
		if err := c.Run(); err != nil || passed != n*size {
			t.Errorf("%d bytes of stderr: %v", passed, err)
		}
	})
	if text, err := io.ReadAll(stdout); string(text) != "waits" || err != nil {
		t.Errorf("stdout: %q, %v", text, err)
	}
}

// The released server waits for a paused consumer, too.
func TestConsumerPausesAtCodex(t *testing.T) {
	t.Parallel()
	pause := 500 * time.Millisecond
	if text := os.Getenv(pauseVariable); text != "" {
		var err error
		if pause, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range places {
		if !p.codex {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			env := p.open(t, nil)
			const size = 100 << 20
			c := env.Command(background(t), "sh", "-c", fmt.Sprintf(`echo begun; head -c %d /dev/zero | tr '\0' x; exit 3`, size))
			stdout, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(stdout)
			if line, err := r.ReadString('\n'); err != nil || line != "begun\n" {
				t.Fatalf("%q, %v", line, err)
			}
			<-time.After(pause)
			if _, err := env.FS("/").Stat("."); err != nil {
				t.Errorf("Stat after the pause: %v", err)
			}
			takeAll(t, c, r, 0, size)
		})
	}
}
