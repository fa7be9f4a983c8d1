//go:build unix

package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
)

// collect reads events until they end, as words: "1 output ab", "2 exited 3".
func collect(t *testing.T, p *client.Process) []string {
	t.Helper()
	var got []string
	for e, err := range p.Events(background(t)) {
		if err != nil {
			got = append(got, "error "+err.Error())
			continue
		}
		word := fmt.Sprint(e.Seq, " ", e.Kind)
		switch e.Kind {
		case client.Output:
			word += " " + string(e.Data)
		case client.Exited:
			word += " " + strconv.Itoa(e.Exit.ExitCode)
		}
		got = append(got, word)
	}
	return got
}

func same(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		c := child(env, "echo", "hi")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		// Early, and twice.
		early := make(chan []string)
		go func() { early <- collect(t, c.Process) }()
		var out string
		kinds := map[client.EventKind]uint64{}
		var last uint64
		for e, err := range c.Events(background(t)) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Seq != last+1 {
				t.Errorf("event %d after %d", e.Seq, last)
			}
			last = e.Seq
			kinds[e.Kind] = e.Seq
			if e.Kind == client.Output {
				out += string(e.Data)
				if e.Stream != client.Stdout {
					t.Errorf("stream %s", e.Stream)
				}
			}
		}
		if out != "hi\n" || kinds[client.Closed] != last || kinds[client.Exited] == 0 {
			t.Errorf("output %q, %v", out, kinds)
		}
		same(t, collect(t, c.Process), <-early)
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
		// The exit may have come before the output.
		r, err := c.Read(background(t), 0, 0)
		if err != nil || r.Closed || r.NextSeq != kinds[client.Output]+1 || string(r.Output[0].Data) != "hi\n" {
			t.Fatalf("Read: %+v, %v", r, err)
		}
		r, err = c.Read(background(t), r.NextSeq-1, 0)
		if err != nil || !r.Closed || r.Exit == nil || r.NextSeq != last+1 || len(r.Output) > 0 {
			t.Errorf("Read on: %+v, %v", r, err)
		}
		if n, err := c.Changed(background(t), 0); err != nil || n != last {
			t.Errorf("Changed: %d, %v", n, err)
		}
	})
}

// A subscriber that comes late or lags is told what it has missed, and may read
// it.
func TestLateSubscriber(t *testing.T) {
	t.Parallel()
	for _, p := range places {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			env := p.open(t, &client.Options{ReplayEvents: 4})
			// Each number is an event of its own, because the next one waits for it to arrive.
			c := env.Command(background(t), "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo $i; read line; done")
			in, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			answers := &replier{stdin: in}
			c.Stdout = answers
			if err := errors.Join(c.Run(), answers.err); err != nil {
				t.Fatal(err)
			}
			var lagged *client.LaggedError
			var got []client.Event
			for e, err := range c.Events(background(t)) {
				switch {
				case errors.As(err, &lagged):
				case err != nil:
					t.Fatal(err)
				default:
					got = append(got, e)
				}
			}
			if len(got) != 4 || got[3].Kind != client.Closed || lagged == nil || lagged.From != 1 || lagged.To != got[0].Seq-1 {
				t.Fatalf("events %v, %v", got, lagged)
			}
			r, err := c.Read(background(t), lagged.From-1, 0)
			if err != nil {
				t.Fatal(err)
			}
			var text string
			for _, e := range r.Output {
				text += string(e.Data)
			}
			if text != "1\n2\n3\n4\n5\n6\n7\n8\n9\n" {
				t.Errorf("read %q", text)
			}
		})
	}
}

func TestReplayBytes(t *testing.T) {
	t.Parallel()
	env := openLocal(t, &client.Options{ReplayBytes: 1000})
	c := child(env, "pattern", "1000000")
	if err := c.Run(); err == nil {
		t.Fatal("exit code 9 expected")
	}
	size := 0
	for e, err := range c.Events(background(t)) {
		if err != nil && !errors.As(err, new(*client.LaggedError)) {
			t.Fatal(err)
		}
		size += len(e.Data)
	}
	if size > 1000 {
		t.Errorf("%d bytes replayed", size)
	}
}

func TestPolling(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		c := child(env, "cat")
		if _, err := c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		if n, err := c.Changed(ctx, 0); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Changed while nothing happens: %d, %v", n, err)
		}
		cancel()
		r, err := c.Read(background(t), 0, 20*time.Millisecond)
		if err != nil || len(r.Output) != 0 || r.Exit != nil || r.Closed || r.NextSeq != 1 {
			t.Errorf("Read while nothing happens: %+v, %v", r, err)
		}
		go func() { _ = c.Write(background(t), []byte("x")) }()
		r, err = c.Read(background(t), 0, testkit.Patience)
		if err != nil || len(r.Output) != 1 || string(r.Output[0].Data) != "x" || r.NextSeq != 2 {
			t.Errorf("Read: %+v, %v", r, err)
		}
		if err := c.Terminate(background(t), 0); err != nil {
			t.Error(err)
		}
		for after := uint64(1); ; {
			r, err := c.Read(background(t), after, testkit.Patience)
			if err != nil {
				t.Fatal(err)
			}
			if r.Closed {
				break
			}
			after = r.NextSeq - 1
		}
		_ = c.Wait()
	})
}

// Events that come in any order, and twice, go out in theirs.
func TestDisorder(t *testing.T) {
	t.Parallel()
	f := newFake(t, func(c *fakeConn) {
		if !c.shake() {
			return
		}
		id, _ := c.start()
		c.output("somebody else's", 1, "x")
		c.output(id, 3, "c")
		c.output(id, 1, "a")
		c.output(id, 1, "a")
		c.closed(id, 6)
		c.exited(id, 4, 7)
		c.output(id, 5, "d")
		c.output(id, 2, "b")
		c.output(id, 9, "after closed")
		c.drain()
	})
	env := f.dial(nil)
	c := child(env, "x")
	var out strings.Builder
	c.Stdout = &out
	exit, ok := errors.AsType[*client.ExitError](c.Run())
	if !ok || exit.ExitCode != 7 || out.String() != "abcd" {
		t.Errorf("%q, %v", &out, exit)
	}
	same(t, collect(t, c.Process), []string{"1 output a", "2 output b", "3 output c", "4 exited 7", "5 output d", "6 closed"})
}

// What does not come, or does not fit while it waits for its turn, is read.
func TestMissingEventsAreRead(t *testing.T) {
	t.Parallel()
	for _, flood := range []bool{false, true} {
		t.Run(fmt.Sprintf("flood=%v", flood), func(t *testing.T) {
			t.Parallel()
			const n = 1000
			f := newFake(t, func(c *fakeConn) {
				if !c.shake() {
					return
				}
				id, _ := c.start()
				last := uint64(5)
				if flood {
					last = n
				}
				for seq := uint64(2); seq <= last; seq++ { // 1 gets lost
					c.output(id, seq, "x")
				}
				for {
					m, ok := c.next()
					if !ok {
						return
					}
					if m.Method != "process/read" {
						if m.ID != nil {
							c.reply(m, object{"running": false})
						}
						continue
					}
					chunks := []object{}
					for seq := m.Params.AfterSeq + 1; seq <= last; seq++ {
						chunks = append(chunks, object{"seq": seq, "stream": "stdout", "chunk": []byte("x")})
					}
					next := last + 3 // exited and closed
					if len(chunks) > 0 {
						next = last + 1
					}
					c.reply(m, object{"chunks": chunks, "nextSeq": next, "exited": true, "exitCode": 0, "closed": true, "failure": nil})
				}
			})
			env := f.dial(nil)
			c := child(env, "x")
			var out strings.Builder
			c.Stdout = &out
			testkit.Within(t, "Run", func() {
				if err := c.Run(); err != nil {
					t.Error(err)
				}
			})
			want := 5
			if flood {
				want = n
			}
			if out.Len() != want {
				t.Errorf("%d bytes of %d", out.Len(), want)
			}
		})
	}
}

// What the server does not have any more fails the process, once, and ends it.
func TestGap(t *testing.T) {
	t.Parallel()
	terminated := make(chan string, 10)
	f := newFake(t, func(c *fakeConn) {
		if !c.shake() {
			return
		}
		id, _ := c.start()
		c.output(id, 4, "x")
		for {
			m, ok := c.next()
			switch {
			case !ok:
				return
			case m.Method == "process/terminate":
				terminated <- m.Params.ProcessID
				c.reply(m, object{"running": true})
			case m.Method == "process/read":
				chunks := []object{}
				if m.Params.AfterSeq < 4 {
					chunks = []object{{"seq": 4, "stream": "stdout", "chunk": []byte("x")}}
				}
				c.reply(m, object{"chunks": chunks, "nextSeq": 5, "exited": false, "exitCode": nil, "closed": false, "failure": nil, "firstSeq": 4, "droppedBytes": 9})
			}
		}
	})
	env := f.dial(nil)
	c := child(env, "x")
	c.Stdout = new(strings.Builder)
	var err error
	testkit.Within(t, "Run", func() { err = c.Run() })
	process, ok := errors.AsType[*client.LostError](err)
	if !ok || process.ProcessID != c.ID {
		t.Errorf("Run: %v", err)
	}
	if gap, ok := errors.AsType[*client.GapError](err); !ok || gap.From != 1 || gap.To != 3 || gap.DroppedBytes != 9 {
		t.Errorf("Run: %v", err)
	}
	if id := <-terminated; id != c.ID {
		t.Errorf("terminated %s", id)
	}
	if got := collect(t, c.Process); len(got) != 1 || !strings.HasPrefix(got[0], "error ") {
		t.Errorf("events %q", got)
	}
	if _, err := c.Read(background(t), 0, 0); !errors.As(err, &process) {
		t.Errorf("Read: %v", err)
	}
	if n, err := c.Changed(background(t), 4); n != 5 || err != nil {
		t.Errorf("Changed: %d, %v", n, err)
	}
}
