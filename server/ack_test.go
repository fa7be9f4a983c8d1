//go:build linux

package server_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/protocol"
	"execserver/server"
)

// pattern checks that what it is given is testkit.Pattern, piece by piece.
type pattern struct {
	at  uint64 // bytes so far
	err error
}

func (p *pattern) take(_ string, data []byte) {
	for p.err == nil && len(data) > 0 {
		var want [8]byte
		binary.BigEndian.PutUint64(want[:], p.at/8)
		n := min(8-int(p.at%8), len(data))
		if !bytes.Equal(data[:n], want[p.at%8:][:n]) {
			p.err = fmt.Errorf("byte %d is not what was written there", p.at)
		}
		p.at += uint64(n)
		data = data[n:]
	}
}

// A stream many times as long as what is retained survives any number of cuts:
// every byte arrives once.
func TestAcknowledgedStreamSurvivesCuts(t *testing.T) {
	const size, cuts = 16 << 20, 10
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	url := serve(t, &server.Options{
		ProbeTimeout: 50 * time.Millisecond,
		Session:      server.SessionOptions{RetainedBytes: 256 << 10},
	})
	ctx := testContext(t)
	s := &testclient.Session{URL: url, AckEvery: 1 + random.IntN(3)}
	if err := testclient.Open(ctx, s); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var got pattern
	cut, next := make(chan struct{}), uint64(size/(cuts+1))
	p := &testclient.Process{ID: "p", Take: func(stream string, data []byte) {
		if got.take(stream, data); got.at >= next {
			next += size / (cuts + 1)
			select {
			case cut <- struct{}{}:
			case <-s.Done():
			}
		}
	}}
	argv, env := testkit.Child("pattern", strconv.Itoa(size))
	if err := s.Start(ctx, p, protocol.StartParams{Argv: argv, Env: env, Cwd: protocol.OSPath("/")}); err != nil {
		t.Fatal(err)
	}
	for ended := false; !ended; {
		select {
		case <-p.Closed():
			ended = true
		case <-s.Done():
			t.Fatal(s.Err())
		case <-cut:
			s.Cut()
		}
	}
	code, err := p.Wait(ctx)
	if err != nil || code != 9 || got.err != nil || got.at != size || s.Err() != nil {
		t.Errorf("%d of %d bytes, code %d: %v", got.at, size, code, errors.Join(err, got.err, s.Err()))
	}
	if s.Resumes() < 5 {
		t.Errorf("only %d cuts", s.Resumes())
	}
	t.Logf("%d cuts, %d events came again", s.Resumes(), p.Repeats())
}

// A child whose output nobody acknowledges waits, whatever the transport says of
// its peer, and goes on when the client has spoken.
func TestUnacknowledgedOutputHoldsTheChild(t *testing.T) {
	const size = 5 << 20
	const limit, chunk = 256 << 10, 64 << 10 // the last may exceed the limit
	url := serve(t, &server.Options{Session: server.SessionOptions{RetainedBytes: limit}})
	f := newFollower()
	c := dial(t, url, testclient.Options{Notify: f.notify, Asks: protocol.ClientCapabilities{ProcessAck: true}})
	startChild(t, c, "p", "flood", strconv.Itoa(size))
	testkit.WaitFor(t, testkit.Patience, func() error { // until there is no room for a chunk
		if held, seen := retained(t, c, "p"), f.progress("p"); held < limit-chunk || seen == 0 {
			return fmt.Errorf("%d bytes are retained, %d events have come", held, seen)
		}
		return nil
	})
	for since := time.Now(); time.Since(since) < time.Second; {
		if held := retained(t, c, "p"); held > limit+chunk {
			t.Fatalf("%d bytes are retained", held)
		}
	}
	f.mu.Lock()
	told := f.bytes["p"]
	f.mu.Unlock()
	if told > limit+chunk {
		t.Fatalf("%d bytes have come", told)
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if err := c.Notify(protocol.MethodAck, protocol.AckParams{ProcessID: "p", Seq: f.progress("p")}); err != nil {
			t.Fatalf("%v, %v", err, c.Err())
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, ok := f.closed["p"]; !ok {
			return fmt.Errorf("not closed after %d bytes", f.bytes["p"])
		}
		return nil
	})
	f.check(t)
	if f.bytes["p"] != size {
		t.Errorf("%d bytes of %d", f.bytes["p"], size)
	}
}

// A client that claims to have what was never sent loses that at most: what comes
// later is told, and nobody waits.
func TestAcknowledgementOfTheFuture(t *testing.T) {
	url := serve(t, &server.Options{Session: server.SessionOptions{RetainedBytes: 1000}})
	closed := make(chan struct{})
	c := dial(t, url, testclient.Options{
		Asks: protocol.ClientCapabilities{ProcessAck: true},
		Notify: func(method string, _ json.RawMessage) {
			if method == protocol.NotificationClosed {
				close(closed)
			}
		},
	})
	startChild(t, c, "p", "cat")
	for range 100 {
		call(t, c, protocol.MethodWrite, object{"processId": "p", "chunk": "eHh4"}, nil)
		if err := c.Notify(protocol.MethodAck, protocol.AckParams{ProcessID: "p", Seq: math.MaxUint64}); err != nil {
			t.Fatal(err)
		}
	}
	call(t, c, protocol.MethodCloseStdin, object{"processId": "p"}, nil)
	select {
	case <-closed:
	case <-time.After(testkit.Patience):
		t.Fatal("not closed")
	}
	var snapshot struct{ Stdout struct{ TotalBytes int } }
	call(t, c, protocol.MethodSnapshot, object{"processId": "p"}, &snapshot)
	if snapshot.Stdout.TotalBytes != 300 {
		t.Errorf("%d bytes were written", snapshot.Stdout.TotalBytes)
	}
}

// A client that takes its output by polling alone gets all of it, however little
// all processes together may retain: what it has read makes room.
func TestPollingWithinTheTotal(t *testing.T) {
	const size, total = 1_000_005, 200_000
	url := serve(t, &server.Options{Session: server.SessionOptions{RetainedTotalBytes: total}})
	c := dial(t, url, testclient.Options{})
	argv, env := testkit.Child("flood", strconv.Itoa(size))
	call(t, c, protocol.MethodStart, protocol.StartParams{
		ProcessID: "p", Argv: append([]string{"/bin/sh", "-c", `read go; exec "$@"`, "sh"}, argv...), Env: env,
		Cwd: protocol.OSPath("/"), PipeStdin: true,
	}, nil)
	// Before its first read, nothing tells this client from one that reads the events.
	call(t, c, protocol.MethodRead, object{"processId": "p", "waitMs": 0}, nil)
	call(t, c, protocol.MethodWrite, object{"processId": "p", "chunk": "Z28K"}, nil)
	for got, after, read := 0, uint64(0), time.Now(); ; {
		var result struct {
			Chunks []struct {
				Seq   uint64
				Chunk []byte
			}
			Closed bool
		}
		call(t, c, protocol.MethodRead, object{"processId": "p", "afterSeq": after, "waitMs": 500}, &result)
		for _, chunk := range result.Chunks {
			got, after, read = got+len(chunk.Chunk), chunk.Seq, time.Now()
		}
		switch {
		case result.Closed && got == size:
			return
		case result.Closed:
			t.Fatalf("closed after %d bytes of %d", got, size)
		case time.Since(read) > testkit.Patience/2:
			t.Fatalf("nothing more comes after %d bytes of %d", got, size)
		}
	}
}
