package output

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"execserver/protocol"
)

// FuzzLogAgainstSlice appends, reads, acknowledges and evicts at random, and
// compares the log with a plain slice of everything ever appended.
func FuzzLogAgainstSlice(f *testing.F) {
	f.Add([]byte{0, 10, 1, 20, 2, 0, 3, 5, 0, 200, 4, 1, 2, 0})
	f.Add(bytes.Repeat([]byte{0, 200, 2, 1, 3, 250, 6, 0}, 40))
	f.Add(bytes.Repeat([]byte{0, 200, 2, 0, 3, 250}, 60))
	f.Add(append(bytes.Repeat([]byte{0, 200, 2, 1, 3, 250}, 60), 6, 0))
	f.Add([]byte("append some, read some, acknowledge some"))
	f.Fuzz(func(t *testing.T, ops []byte) {
		ops = ops[:min(len(ops), 400)] // every step is checked against everything
		const limit = 4096
		budget := NewBudget(limit * 4)
		l := NewLog(limit, budget, nil)
		defer l.Release()
		var everything, streams []byte // each byte appended, and its stream
		var in *segment
		var kept, borrowed []given      // by Next, by Borrow
		told := make(map[uint64]string) // what they said of each number
		var cursor uint64
		for i := 0; i+1 < len(ops); i += 2 {
			op, arg := ops[i]%7, int(ops[i+1])
			switch op {
			case 0, 1:
				n := arg*4 + 1
				if !l.roomNow() {
					continue // the reader of a real stream would wait
				}
				if in == nil || len(in.buf)+n > 1024 { // long before it is full, so that others are filled again
					in = l.nextSegment(in, maxSegment)
				}
				from := len(in.buf)
				in.buf = in.buf[:from+n]
				for j := range n {
					in.buf[from+j] = byte(len(everything) * 7)
					everything = append(everything, in.buf[from+j])
					streams = append(streams, op)
				}
				l.append([]string{protocol.Stdout, protocol.Stderr}[op], in.buf[from:], in)
			case 2:
				for {
					next, list := l.Borrow, &borrowed
					if arg == 0 {
						next, list = l.keep, &kept
					}
					e, ok := next(cursor)
					if !ok {
						break
					}
					*list = append(*list, given{e, string(e.Output.Data)})
					if e.Seq != cursor+1 && e.Seq != l.chunks[0].Seq {
						t.Fatalf("event %d after %d, although %d is retained", e.Seq, cursor, l.chunks[0].Seq)
					}
					cursor = e.Seq
					told[e.Seq] = string(e.Output.Data)
				}
			case 3:
				l.Ack(min(uint64(arg), cursor))
			case 4:
				l.SetEvict(arg%2 == 0)
			case 5:
				checkRead(t, l, uint64(arg), uint64(arg)*3)
			case 6:
				for _, g := range borrowed {
					g.check(t)
					l.Return(g.event)
				}
				borrowed = nil
			}
			for _, g := range kept {
				g.check(t)
			}
			checkLog(t, l, everything, streams, told)
			if l.cost > limit+maxChunkBytes {
				t.Fatalf("%d bytes retained, the limit is %d", l.cost, limit)
			}
			if used, held := budget.Used(), heldBy(l); used != held {
				t.Fatalf("the budget has %d bytes, the log holds %d", used, held)
			}
		}
	})
}

// given is an event, and what its data were when it was given out.
type given struct {
	event Event
	data  string
}

func (g given) check(t *testing.T) {
	t.Helper()
	if string(g.event.Output.Data) != g.data {
		t.Fatalf("event %d has changed in the hands of who has it", g.event.Seq)
	}
}

// checkLog compares the retained output with the slice: it is the end of everything, in
// order, and chunks already read have not changed.
func checkLog(t *testing.T, l *Log, everything, streams []byte, told map[uint64]string) {
	t.Helper()
	at := l.droppedBytes
	for i, c := range l.chunks {
		if i > 0 && c.Seq != l.chunks[i-1].Seq+1 {
			t.Fatalf("chunk %d follows chunk %d", c.Seq, l.chunks[i-1].Seq)
		}
		end := at + uint64(len(c.Data))
		if end > uint64(len(everything)) || !bytes.Equal(c.Data, everything[at:end]) {
			t.Fatalf("chunk %d is not what was appended at %d", c.Seq, at)
		}
		for _, s := range streams[at:end] {
			if (s == 0) != (c.Stream == protocol.Stdout) {
				t.Fatalf("chunk %d has bytes of the other stream", c.Seq)
			}
		}
		if before, ok := told[c.Seq]; ok && before != string(c.Data) {
			t.Fatalf("chunk %d has changed after it was told", c.Seq)
		}
		at = end
	}
	if oldest := l.oldestLocked(); oldest < l.candidate.age {
		t.Fatalf("the budget does not know that what has the age %d may be evicted", oldest)
	}
	if at != uint64(len(everything)) {
		t.Fatalf("%d bytes retained and dropped of %d", at, len(everything))
	}
}

// roomNow is reserve without waiting.
func (l *Log) roomNow() bool { return l.readState() == readNeedsBudget }

// heldBy returns how much memory the output that a log retains keeps alive.
func heldBy(logs ...*Log) (size int64) {
	memory := make(map[*byte]int64) // by its beginning
	for _, l := range logs {
		size += int64(len(l.chunks)) * chunkCost
		for _, c := range l.chunks {
			memory[unsafe.SliceData(c.in.buf)] = int64(cap(c.in.buf))
		}
		for _, r := range l.streams {
			size += int64(cap(r.head))
		}
	}
	for _, n := range memory {
		size += n
	}
	return size
}

// checkRead checks an answer of process/read against the rules.
func checkRead(t *testing.T, l *Log, after, maxBytes uint64) {
	t.Helper()
	r := l.Read(after, &maxBytes)
	size := uint64(0)
	for i, c := range r.Chunks {
		if c.Seq <= after || i > 0 && c.Seq != r.Chunks[i-1].Seq+1 {
			t.Fatalf("chunk %d in an answer after %d", c.Seq, after)
		}
		if i > 0 && size >= maxBytes {
			t.Fatalf("chunk beyond maxBytes %d", maxBytes)
		}
		size += uint64(len(c.Data))
		if i > 0 && size > maxBytes {
			t.Fatalf("%d bytes, maxBytes is %d", size, maxBytes)
		}
	}
	want := l.last + 1
	if n := len(r.Chunks); n > 0 {
		want = r.Chunks[n-1].Seq + 1
	}
	if r.NextSeq != want {
		t.Fatalf("nextSeq %d, want %d", r.NextSeq, want)
	}
}

func appendText(l *Log, stream, text string) { l.append(stream, []byte(text), nil) }

func TestReadRules(t *testing.T) {
	l := NewLog(1<<20, NewBudget(1<<20), nil)
	appendText(l, protocol.Stdout, "one")
	appendText(l, protocol.Stderr, "two")
	zero, four := uint64(0), uint64(4)
	for _, test := range []struct {
		name     string
		after    uint64
		maxBytes *uint64
		seqs     int
		next     uint64
	}{
		{"everything", 0, nil, 2, 3},
		{"the first chunk is taken whatever its size", 0, &zero, 1, 2},
		{"chunks are not split", 0, &four, 1, 2},
		{"after", 1, nil, 1, 3},
		{"beyond the end", 99, nil, 0, 3},
	} {
		r := l.Read(test.after, test.maxBytes)
		if len(r.Chunks) != test.seqs || r.NextSeq != test.next {
			t.Errorf("%s: %d chunks, nextSeq %d", test.name, len(r.Chunks), r.NextSeq)
		}
	}
	l.Exit(protocol.ExitRecord{ExitCode: 3})
	l.Close(false)
	if r := l.Read(2, nil); r.Exit == nil || !r.Closed || r.Exit.ExitCode != 3 || r.NextSeq != 5 {
		t.Errorf("after the end: %+v", r)
	}
	large := uint64(1 << 20)
	if r := l.Read(0, &large); r.NextSeq != 3 {
		t.Errorf("with maxBytes, exited and closed are not counted: nextSeq %d", r.NextSeq)
	}
}

func TestEvictionIsTold(t *testing.T) {
	l := NewLog(1000, NewBudget(1<<20), nil)
	for i := range 20 {
		l.append(protocol.Stdout, bytes.Repeat([]byte{byte(i)}, 100), nil)
		l.Ack(uint64(i + 1))
		if _, ok := l.Borrow(uint64(i)); !ok { // sealed, so that it does not grow
			t.Fatal("no event")
		}
	}
	r := l.Read(0, nil)
	if r.DroppedBytes == 0 || r.FirstSeq != r.Chunks[0].Seq || r.DroppedBytes != (r.FirstSeq-1)*100 {
		t.Errorf("droppedBytes %d, firstSeq %d, first chunk %d", r.DroppedBytes, r.FirstSeq, r.Chunks[0].Seq)
	}
}

// What the owner may not have seen is not evicted: the child waits.
func TestUnacknowledgedOutputBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog(1000, NewBudget(1<<20), nil)
		l.append(protocol.Stdout, make([]byte, 1000), nil)
		space := make(chan int)
		wait := func() { space <- l.reserve() }
		go wait()
		synctest.Wait()
		select {
		case n := <-space:
			t.Fatalf("space for %d bytes in a full log", n)
		default:
		}
		l.Ack(1)
		if n := <-space; n == 0 {
			t.Error("no space after the acknowledgement")
		}
		l.append(protocol.Stdout, make([]byte, 1000), nil)
		go wait()
		l.SetEvict(true)
		if n := <-space; n == 0 {
			t.Error("no space although eviction is allowed")
		}
		l.SetEvict(false)
		l.append(protocol.Stdout, make([]byte, 1000), nil)
		go wait()
		l.Abort()
		if n := <-space; n != 0 {
			t.Errorf("space for %d bytes after the end", n)
		}
	})
}

// A reader that polls keeps what it has not read, although it was delivered.
func TestPollingReaderIsProtected(t *testing.T) {
	l := NewLog(1000, NewBudget(1<<20), nil)
	l.append(protocol.Stdout, make([]byte, 600), nil)
	l.Borrow(0)
	l.append(protocol.Stdout, make([]byte, 600), nil)
	l.Borrow(1)
	l.Ack(2)
	l.Poll(0)
	if l.roomNow() {
		t.Error("unread output was evicted")
	}
	l.Poll(1)
	if !l.roomNow() {
		t.Error("output that was read is not evicted")
	}
}

// A reader that has waited for longer than pollGrace is protected as well.
func TestPollingReaderThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog(1000, NewBudget(1<<20), nil)
		defer l.Release()
		l.Poll(0)
		answer := l.HoldPoll()
		time.Sleep(2 * pollGrace)
		l.appendSeen(1000)
		l.Ack(1)
		if l.roomNow() {
			t.Error("output was evicted before the reader received it")
		}
		answer()
		time.Sleep(pollGrace / 2)
		if l.roomNow() {
			t.Error("output was evicted before the reader could read on")
		}
		space := make(chan int)
		go func() { space <- l.reserve() }()
		synctest.Wait()
		l.mu.Lock()
		retained := len(l.chunks)
		l.mu.Unlock()
		if retained == 0 {
			t.Error("output was evicted while the reader may read on")
		}
		if n := <-space; n == 0 {
			t.Error("no space after the reader has gone")
		}
	})
}

// The total budget evicts the oldest acknowledged output first, of any process.
func TestBudgetEvictsTheOldest(t *testing.T) {
	budget := NewBudget(4000)
	logs := []*Log{NewLog(1<<20, budget, nil), NewLog(1<<20, budget, nil)}
	for i := range 36 {
		l := logs[i%2]
		l.append(protocol.Stdout, make([]byte, 50), nil)
		l.Borrow(l.LastSeq() - 1)
		l.Ack(l.LastSeq())
	}
	if budget.Used() < 4000 {
		t.Fatalf("only %d bytes used", budget.Used())
	}
	if n := logs[0].reserve(); n == 0 {
		t.Fatal("no space")
	}
	if budget.Used() >= 4000 {
		t.Errorf("%d bytes used", budget.Used())
	}
	a, b := logs[0].droppedBytes, logs[1].droppedBytes
	if a == 0 || b == 0 {
		t.Errorf("dropped %d and %d bytes; both logs had old output", a, b)
	}
	logs[0].Release()
	logs[1].Release()
	if budget.Used() != 0 {
		t.Errorf("%d bytes used by nobody", budget.Used())
	}
}

func TestChunksGrowUntilSeen(t *testing.T) {
	l := NewLog(1<<20, NewBudget(1<<20), nil)
	memory := make([]byte, 0, 100)
	add := func(n int) {
		from := len(memory)
		memory = memory[:from+n]
		l.append(protocol.Stdout, memory[from:], nil)
	}
	add(10)
	add(10)
	if e, _ := l.Borrow(0); len(e.Output.Data) != 20 {
		t.Errorf("first chunk has %d bytes, want 20", len(e.Output.Data))
	}
	add(5)
	if e, _ := l.Borrow(0); len(e.Output.Data) != 20 {
		t.Errorf("a chunk that was seen has grown to %d bytes", len(e.Output.Data))
	}
	if e, _ := l.Borrow(1); e.Seq != 2 || len(e.Output.Data) != 5 {
		t.Errorf("second chunk: %+v", e)
	}
}

func TestWaitReturnsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog(1<<20, NewBudget(1<<20), nil)
		l.Exit(protocol.ExitRecord{})
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		l.Wait(ctx, 1)
		if ctx.Err() == nil {
			t.Error("Wait returned although exited has been seen and closed has not come")
		}
		l.Close(false)
		l.Wait(context.Background(), 99)
	})
}

// TestRoomAfterPolling: what a reader has taken by polling is offered to the budget,
// and evicted for space of the process's own. What came after it is acknowledged, and
// makes space once the reader has not polled for a while.
func TestRoomAfterPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 64 << 10
		l := NewLog(limit, NewBudget(1<<30), nil)
		defer l.Release()
		l.append(protocol.Stdout, make([]byte, limit/2), nil)
		l.Ack(1)
		l.Poll(1)
		l.append(protocol.Stderr, make([]byte, limit), nil)
		l.Ack(2)
		space := make(chan int, 1)
		go func() { space <- l.reserve() }()
		time.Sleep(pollGrace / 2)
		synctest.Wait()
		if len(space) > 0 {
			t.Error("there is space while the reader polls")
		}
		time.Sleep(pollGrace)
		synctest.Wait()
		if len(space) == 0 {
			t.Error("there is no space although everything is acknowledged and nobody polls")
			l.SetEvict(true) // so that the test ends
		}
		<-space
	})
}

// keep is like Borrow, but its caller keeps the data for good, as those of Read and
// Snapshot do.
func (l *Log) keep(after uint64) (Event, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, c := l.nextLocked(after)
	if c != nil {
		c.sealed = true
		c.pinLocked()
	}
	return e, e.Kind != 0
}
