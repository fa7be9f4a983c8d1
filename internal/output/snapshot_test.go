package output

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/testkit"
	"execserver/protocol"
)

// TestSnapshotAgainstSlices appends to two streams and evicts at random. A snapshot is the
// beginning and the end of the output, with the number of bytes missing between them,
// within its bound.
func TestSnapshotAgainstSlices(t *testing.T) {
	const limit = 8192
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 0))
		budget := NewBudget(1 << 20)
		l := NewLog(limit, budget, nil)
		l.Writer(protocol.Stdout)
		l.Writer(protocol.Stderr)
		written := map[string][]byte{protocol.Stdout: nil, protocol.Stderr: nil}
		for range 200 {
			name := []string{protocol.Stdout, protocol.Stderr}[random.IntN(2)]
			data := make([]byte, 1+random.IntN(500))
			for i := range data {
				data[i] = byte(random.IntN(256))
			}
			written[name] = append(written[name], data...)
			l.append(name, data, nil)
			l.Ack(l.LastSeq())
			var bound *uint64
			if random.IntN(2) == 0 {
				bound = new(random.Uint64N(2000))
			}
			r := l.Snapshot(bound)
			if r.NextSeq != l.last+1 || r.Terminal != nil || r.Exit != nil {
				t.Fatalf("seed %d: %+v", seed, r)
			}
			all := l.Snapshot(nil)
			checkStream(t, seed, r.Stdout, all.Stdout, written[protocol.Stdout], bound)
			checkStream(t, seed, r.Stderr, all.Stderr, written[protocol.Stderr], bound)
			text, err := json.Marshal(r)
			if err != nil || len(text) > l.EstimateSnapshotSize(bound) {
				t.Fatalf("seed %d: EstimateSnapshotSize %d, the answer has %d bytes, %v", seed, l.EstimateSnapshotSize(bound), len(text), err)
			}
			if held := heldBy(l); l.cost > limit || budget.Used() != held {
				t.Fatalf("seed %d: %d bytes retained, %d held, the budget has %d, the limit is %d", seed, l.cost, held, budget.Used(), limit)
			}
		}
		if got := l.Snapshot(nil).Stdout; len(got.Head) < limit/8 || got.OmittedBytes == 0 {
			t.Errorf("seed %d: the head has %d bytes, %d are omitted", seed, len(got.Head), got.OmittedBytes)
		}
		l.Release()
		if budget.Used() != 0 {
			t.Fatalf("seed %d: %d bytes used by nobody", seed, budget.Used())
		}
	}
}

func checkStream(t *testing.T, seed uint64, s, all *protocol.StreamSnapshot, written []byte, bound *uint64) {
	t.Helper()
	size := uint64(len(s.Head) + len(s.Tail))
	want := uint64(len(all.Head) + len(all.Tail))
	if bound != nil {
		want = min(want, *bound)
	}
	switch {
	case !bytes.HasPrefix(written, s.Head) || !bytes.HasSuffix(written, s.Tail):
		t.Fatalf("seed %d: not the beginning and the end", seed)
	case size+s.OmittedBytes != uint64(len(written)) || s.TotalBytes != uint64(len(written)):
		t.Fatalf("seed %d: head %d, tail %d, omitted %d, total %d of %d", seed, len(s.Head), len(s.Tail), s.OmittedBytes, s.TotalBytes, len(written))
	case s.OmittedBytes == 0 && len(s.Tail) > 0:
		t.Fatalf("seed %d: nothing is omitted, and still there is a tail", seed)
	case size != want:
		t.Fatalf("seed %d: %d bytes, want %d", seed, size, want)
	}
}

// A snapshot contains the number of the next event: later output gets numbers of its own,
// although the last chunk could have grown.
func TestWhatIsSeenDoesNotGrow(t *testing.T) {
	for name, see := range map[string]func(*Log){
		"Tail":   func(l *Log) { l.Tail() },
		"Status": func(l *Log) { l.Status() },
		"Ack":    func(l *Log) { l.Ack(99) },
		"hold":   func(l *Log) { l.retainedStreams() },
	} {
		l := NewLog(1<<20, NewBudget(1<<20), nil)
		memory := make([]byte, 0, 100)
		l.append(protocol.Stdout, memory[:10], nil)
		see(l)
		l.append(protocol.Stdout, memory[10:20], nil)
		if l.last != 2 {
			t.Errorf("%s: the chunk has grown", name)
		}
	}
}

func TestPositions(t *testing.T) {
	l := NewLog(1000, NewBudget(1<<20), nil)
	for range 5 {
		l.append(protocol.Stdout, make([]byte, 100), nil)
		l.sealLocked()
	}
	l.Exit(protocol.ExitRecord{ExitCode: 1})
	l.append(protocol.Stdout, make([]byte, 50), nil)
	l.Close(false)
	if got, want := l.Ack(2), (Position{2, 200}); got != want || l.Acked() != want {
		t.Errorf("acknowledged up to %+v", got)
	}
	if got, want := l.Ack(1), (Position{2, 200}); got != want {
		t.Errorf("an older acknowledgement: %+v", got)
	}
	l.Rewind(Position{1, 100})
	l.Rewind(Position{3, 300})
	if got, want := l.Acked(), (Position{1, 100}); got != want {
		t.Errorf("rewound to %+v", got)
	}
	if got, want := l.Ack(99), (Position{8, 550}); got != want || l.Tail() != want {
		t.Errorf("everything acknowledged: %+v", got)
	}
	for after, offset := range []uint64{0, 100, 200, 300, 400, 500, 500, 550} {
		if e, ok := l.Borrow(uint64(after)); !ok || e.Offset != offset {
			t.Errorf("event %d is at %d, want %d", after+1, e.Offset, offset)
		}
	}
}

// TestAcknowledgementAfterEviction has an owner come back that received more than it had
// acknowledged, while the output after that was evicted. What it lacks is counted from the
// number that it acknowledges now.
func TestAcknowledgementAfterEviction(t *testing.T) {
	for acked := range uint64(40) {
		l := NewLog(1000, NewBudget(1<<20), nil)
		l.SetEvict(true)
		offsets := []uint64{0}
		for i := range 40 {
			l.append(protocol.Stdout, make([]byte, 50+i), nil)
			l.sealLocked()
			offsets = append(offsets, l.total)
			if i == 3 {
				l.Ack(3)
			}
		}
		first := l.Read(0, nil).FirstSeq
		if first < 20 {
			t.Fatalf("the output from %d on is retained", first)
		}
		want := Position{max(3, acked), offsets[max(3, acked)]}
		if got := l.Ack(acked); got != want {
			t.Errorf("acknowledged up to %d: %+v, want %+v", acked, got, want)
		}
		if got := l.Ack(acked + 1); got.Offset != offsets[got.Seq] {
			t.Errorf("then up to %d: %+v, want the offset %d", acked+1, got, offsets[got.Seq])
		}
	}
	l := NewLog(1000, NewBudget(1<<20), nil)
	l.SetEvict(true)
	for range 3 * maxEvictedUnacked {
		l.append(protocol.Stdout, make([]byte, 100), nil)
		l.sealLocked()
	}
	if got, want := l.Ack(2*maxEvictedUnacked), (Position{2 * maxEvictedUnacked, 100 * maxEvictedUnacked}); got != want || len(l.evictedUnacked) > 0 {
		t.Errorf("beyond what the log remembers: %+v, want %+v, and %d positions", got, want, len(l.evictedUnacked))
	}
}

// Heads are kept as long as there is anything else to evict, and dropped before a child has
// to wait.
func TestBudgetTakesHeadsLast(t *testing.T) {
	budget := NewBudget(20_000)
	old := NewLog(4000, budget, nil)
	for range 100 {
		old.append(protocol.Stdout, make([]byte, 100), nil)
		old.Ack(old.LastSeq())
	}
	if head := old.streams[0].head; len(head) != 500 {
		t.Fatalf("the head has %d bytes", len(head))
	}
	young := NewLog(1<<20, budget, nil)
	for budget.Used() < 20_000 {
		young.append(protocol.Stdout, make([]byte, 100), nil) // not acknowledged
	}
	if n := young.reserve(); n == 0 || len(old.streams[0].head) != 500 {
		t.Fatalf("space for %d bytes, the head has %d", n, len(old.streams[0].head))
	}
	for budget.Used() < 20_000 {
		young.append(protocol.Stdout, make([]byte, 100), nil)
	}
	space := make(chan int)
	go func() { space <- young.reserve() }()
	select {
	case n := <-space:
		if n == 0 || len(old.streams[0].head) != 0 {
			t.Errorf("space for %d bytes, the head has %d", n, len(old.streams[0].head))
		}
	case <-time.After(testkit.Patience):
		t.Fatal("the child waits for what could be given up")
	}
	old.append(protocol.Stdout, make([]byte, 4000), nil)
	old.Ack(old.LastSeq())
	old.append(protocol.Stdout, make([]byte, 4000), nil)
	if len(old.streams[0].head) != 0 {
		t.Error("a later part was taken for the beginning")
	}
}

func TestWaitExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog(1<<20, NewBudget(1<<20), nil)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		l.append(protocol.Stdout, []byte("x"), nil)
		if l.WaitExit(ctx); ctx.Err() == nil {
			t.Error("returned before the exit")
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.WaitExit(context.Background())
		}()
		l.Exit(protocol.ExitRecord{})
		<-done
	})
}
