//go:build linux

package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sort"
	"testing"
	"time"

	"github.com/coder/websocket"

	"execserver/client"
	"execserver/internal/process"
	"execserver/server"
)

// terminals are programs that echo a key: the terminal itself, and a program
// that has the terminal in raw mode, as editors and shells have.
var terminals = map[string]string{
	"terminal": "echo ready; exec sleep 1000",
	"program":  "stty raw -echo; echo ready; exec cat",
}

// BenchmarkKeystroke measures the time from a key to its echo: "floor" with the
// terminal in this process and no server, "websocket" through a server on
// loopback, and "watched" the same while another connection shows the terminal as the
// page does. They are to be compared within one run.
func BenchmarkKeystroke(b *testing.B) {
	for name, script := range terminals {
		b.Run(name+"/floor", func(b *testing.B) { keystrokes(b, newLocalTerminal(b, script)) })
		b.Run(name+"/websocket", func(b *testing.B) { keystrokes(b, newRemoteTerminal(b, script, false)) })
		b.Run(name+"/watched", func(b *testing.B) { keystrokes(b, newRemoteTerminal(b, script, true)) })
	}
}

// keystrokes presses a key b.N times, each after the echo of the one before.
func keystrokes(b *testing.B, press func()) {
	times := make([]time.Duration, 0, b.N)
	for range 20 {
		press()
	}
	b.ResetTimer()
	for range b.N {
		start := time.Now()
		press()
		times = append(times, time.Since(start))
	}
	b.StopTimer()
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds()), "p99-ns")
}

func newLocalTerminal(b *testing.B, script string) func() {
	p, err := process.Start(process.Spec{Argv: []string{"/bin/sh", "-c", script}, Dir: "/", TTY: true}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		p.Kill()
		p.Abandon()
		<-p.Closed()
		p.Release()
	})
	var seq uint64
	next := func() []byte {
		for {
			if e, ok := p.Log.Borrow(seq); ok {
				seq = e.Seq
				data := bytes.Clone(e.Output.Data)
				p.Log.Return(e)
				return data
			}
			p.Log.Wait(context.Background(), seq)
		}
	}
	for !bytes.Contains(next(), []byte("ready")) {
	}
	return func() {
		p.Write([]byte("x"), nil, nil, nil)
		if got := next(); !bytes.Contains(got, []byte("x")) {
			b.Fatalf("echo is %q", got)
		}
	}
}

func newRemoteTerminal(b *testing.B, script string, watched bool) func() {
	srv := server.New(&server.Options{Auth: server.Unauthenticated})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go srv.ServeWebSocket(listener)
	ctx := context.Background()
	conn, _, err := websocket.Dial(ctx, "ws://"+listener.Addr().String(), nil)
	if err != nil {
		b.Fatal(err)
	}
	conn.SetReadLimit(-1)
	b.Cleanup(func() {
		_ = conn.CloseNow()
		_ = srv.Shutdown(ctx)
	})
	send := func(msg string) {
		if err := conn.Write(ctx, websocket.MessageText, []byte(msg)); err != nil {
			b.Fatal(err)
		}
	}
	// await reads until a message contains the text.
	await := func(text string) {
		for {
			_, msg, err := conn.Read(ctx)
			if err != nil {
				b.Fatal(err)
			}
			if bytes.Contains(msg, []byte(text)) {
				return
			}
		}
	}
	send(`{"id":1,"method":"initialize","params":{"clientName":"bench"}}`)
	send(`{"method":"initialized"}`)
	command, _ := json.Marshal(script)
	send(`{"id":2,"method":"process/start","params":{"processId":"t","argv":["/bin/sh","-c",` + string(command) + `],"cwd":"/","env":{},"tty":true}}`)
	await("cmVhZHk") // "ready"
	if watched {
		watch(b, "ws://"+listener.Addr().String())
	}
	id := 2
	return func() {
		id++
		send(fmt.Sprintf(`{"id":%d,"method":"process/write","params":{"processId":"t","chunk":"eA==","writeId":"%d"}}`, id, id))
		await(`"process/output"`)
	}
}

// watch shows the process "t" of the only session as the page does: it waits for output,
// reads it, and ten times a second asks for the screen.
func watch(b *testing.B, url string) {
	ctx, stop := context.WithCancel(context.Background())
	env, err := client.Dial(ctx, url, &client.Options{NoSession: true})
	if err != nil {
		b.Fatal(err)
	}
	sessions, err := env.Sessions(ctx)
	if err != nil || len(sessions) != 1 {
		b.Fatalf("the sessions are %v, %v", sessions, err)
	}
	_ = env.Close()
	conn, _, err := websocket.Dial(ctx, url, nil)
	if err != nil {
		b.Fatal(err)
	}
	conn.SetReadLimit(-1)
	ask := func(id int, method string, more string) {
		text := fmt.Sprintf(`{"id":%d,"method":%q,"params":{"sessionId":%q,"processId":"t"%s}}`, id, method, sessions[0].ID, more)
		if err := conn.Write(ctx, websocket.MessageText, []byte(text)); err != nil && ctx.Err() == nil {
			b.Error(err)
		}
	}
	for _, text := range []string{`{"id":1,"method":"initialize","params":{"clientName":"bench","observeSessionId":""}}`, `{"method":"initialized"}`} {
		if err := conn.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			b.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var after uint64
		ask(2, "process/read", `,"afterSeq":0,"waitMs":20000`)
		for {
			_, text, err := conn.Read(ctx)
			if err != nil {
				return
			}
			var answer struct {
				ID     int
				Result struct{ NextSeq uint64 }
			}
			if json.Unmarshal(text, &answer) == nil && answer.ID == 2 {
				after = answer.Result.NextSeq - 1
				ask(2, "process/read", fmt.Sprintf(`,"afterSeq":%d,"maxBytes":32768,"waitMs":20000`, after))
			}
		}
	}()
	ticks := make(chan struct{})
	go func() {
		defer close(ticks)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				ask(3, "process/screen", `,"drawing":true`)
			case <-ctx.Done():
				return
			}
		}
	}()
	b.Cleanup(func() {
		stop()
		_ = conn.CloseNow()
		<-done
		<-ticks
	})
}
