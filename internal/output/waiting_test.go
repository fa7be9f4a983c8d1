package output

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/quota"
	"execserver/protocol"
)

// appendSeen appends a chunk that does not grow any more.
func (l *Log) appendSeen(n int) {
	l.append(protocol.Stdout, make([]byte, n), nil)
	l.Tail()
}

// Streams of a principal are queued in the order in which they blocked, and continue in it.
// Those that give up, that drain, or whose log is full do not hold up the others.
func TestOrderOfWaitingStreams(t *testing.T) {
	const streams = 30
	ends := map[int]func(*Log){
		0:  (*Log).Abort,
		5:  (*Log).Drain,
		6:  (*Log).Release,
		17: func(l *Log) { l.Close(false) },
		29: (*Log).Drain,
	}
	synctest.Test(t, func(t *testing.T) {
		budget := NewBudget(3000)
		full := NewLog(1<<20, budget, nil)
		defer full.Release()
		full.appendSeen(3000)
		logs := make([]*Log, streams)
		var want []*Log
		var served atomic.Int64
		for i := range logs {
			l := NewLog(2000, budget, nil)
			defer l.Release()
			logs[i] = l
			if ends[i] == nil {
				want = append(want, l)
			}
			go func() {
				if space := l.reserve(); ends[i] == nil {
					served.Add(1)
					if space == 0 {
						t.Errorf("stream %d was refused", i)
					}
				}
			}()
			synctest.Wait()
		}
		if c := budget.Counts(); c.Stalled != streams || c.Stalls != streams || served.Load() > 0 {
			t.Errorf("%d streams wait, %d have waited, %d have gone on", c.Stalled, c.Stalls, served.Load())
		}
		for i, l := range logs {
			if end := ends[i]; end != nil {
				end(l)
				synctest.Wait()
			}
		}
		full.Ack(0) // nothing
		synctest.Wait()
		if line := inLine(budget, logs); !slices.Equal(line, want) {
			t.Errorf("%d streams stand in line, want %d, in the order of their arrival", len(line), len(want))
		}
		if n := served.Load(); n > 0 {
			t.Errorf("%d streams go on without space", n)
		}
		first := want[0]
		first.appendSeen(2000) // of its other stream, so that it waits for space of its own
		full.Ack(1)
		synctest.Wait()
		if n, c := served.Load(), budget.Counts(); n != int64(len(want)-1) || c.Stalled != 1 || c.Stalls != streams {
			t.Errorf("%d streams have gone on, %d wait, %d have waited", n, c.Stalled, c.Stalls)
		}
		first.Ack(1)
		synctest.Wait()
		if n := served.Load(); n != int64(len(want)) {
			t.Errorf("%d streams have gone on, want %d", n, len(want))
		}
	})
}

// inLine returns the logs whose streams are in the queue of a budget.
func inLine(b *Budget, logs []*Log) (line []*Log) {
	for place := b.queue.Front(); place != nil; place = place.Next() {
		for _, l := range logs {
			if slices.Contains(l.waiters, place.Value.(*waiter)) {
				line = append(line, l)
			}
		}
	}
	return line
}

// What a stream could have evicted, that gives up instead, the next one evicts.
func TestFirstInLineGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := NewBudget(1000)
		full, first, second := NewLog(1<<20, budget, nil), NewLog(1<<20, budget, nil), NewLog(1<<20, budget, nil)
		full.appendSeen(1000)
		refused := waitsForSpace(t, first)
		space := waitsForSpace(t, second)
		first.mu.Lock() // so that it looks too late
		full.Ack(1)
		first.abortLocked()
		first.mu.Unlock()
		synctest.Wait()
		select {
		case n := <-space:
			if n == 0 {
				t.Error("the second stream is refused")
			}
		default:
			t.Error("no space, although everything was acknowledged")
			second.Abort()
		}
		if n := <-refused; n != 0 {
			t.Errorf("space for %d bytes in a log that was aborted", n)
		}
	})
}

// A principal may evict the output of another one as soon as that retains more.
func TestOtherPrincipalGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := NewBudget(8000)
		of := func(principal string, bytes int) *Log {
			b := all.ForPrincipal(principal)
			t.Cleanup(b.Release)
			l := NewLog(1<<20, b, nil)
			t.Cleanup(l.Release)
			l.appendSeen(bytes)
			return l
		}
		of("third", 3000)
		other := of("other", 2500)
		other.Ack(1)
		l := of("principal", 3000)
		space := waitsForSpace(t, l)
		other.appendSeen(1000)
		synctest.Wait()
		select {
		case <-space:
		default:
			t.Error("no space, although another principal retains more that may be evicted")
			l.Abort()
		}
	})
}

// A process that has exited does not wait for space, but makes space where it can.
func TestDrainMakesRoom(t *testing.T) {
	budget := NewBudget(10_000)
	old := readLog(1<<20, budget, 5000, 5000)
	defer old.Release()
	l := NewLog(1<<20, budget, nil)
	defer l.Release()
	l.Drain()
	for range 20 {
		if l.reserve() == 0 {
			t.Fatal("refused")
		}
		if used := budget.Used(); used >= 10_000 && old.Read(0, nil).FirstSeq < old.LastSeq()+1 {
			t.Fatalf("%d bytes are used, although something may be evicted", used)
		}
		l.appendSeen(1000)
	}
	if n := budget.Counts().Stalls; n != 0 {
		t.Errorf("the stream has waited %d times", n)
	}
}

// A listener hears of each time that a stream waits once, without locks.
func TestBlockedIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := NewBudget(1000)
		blocked := 0
		var l *Log
		l = NewLog(2000, budget, listener{blocked: func() {
			l.Status()
			budget.Counts()
			blocked++
		}})
		defer l.Release()
		l.appendSeen(2000)
		go func() {
			if l.reserve() == 0 {
				t.Error("refused")
			}
		}()
		synctest.Wait()
		l.appendSeen(500) // of another stream
		l.Ack(1)
		l.Poll(1)
		synctest.Wait()
		if blocked != 1 || budget.Counts().Stalls != 1 {
			t.Errorf("the stream has blocked %d times, and %d were counted", blocked, budget.Counts().Stalls)
		}
		l.Ack(2)
	})
}

// stuckStream is a stream of a principal that reads whenever it has space.
type stuckStream struct {
	log     *Log
	budget  *Budget
	size    chan int // of what it reads next; closed at the end
	waiting bool     // for space
}

// TestNobodyWaitsInVain changes logs of several principals at random while their streams want
// to read. Whenever nothing happens any more, no stream waits that could read, or could make
// space to read.
func TestNobodyWaitsInVain(t *testing.T) {
	for seed := range uint64(rounds(20)) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			const limit = 16000
			all := NewBudget(limit)
			var streams []*stuckStream
			var running sync.WaitGroup
			for i := range 12 {
				who := []string{"a", "b", "c", quota.None}[i%4]
				b := all.ForPrincipal(who)
				defer b.Release()
				s := &stuckStream{NewLog(4000, b, nil), b, make(chan int, 1000), false}
				streams = append(streams, s)
				running.Go(func() {
					for size := range s.size {
						s.log.mu.Lock()
						s.waiting = true
						s.log.mu.Unlock()
						space := s.log.reserve()
						s.log.mu.Lock()
						s.waiting = false
						s.log.mu.Unlock()
						if space == 0 {
							return
						}
						s.log.append(protocol.Stdout, make([]byte, size), nil)
					}
				})
			}
			change := func(random *rand.Rand) {
				s := streams[random.IntN(len(streams))]
				switch random.IntN(12) {
				case 0, 1, 2, 3, 4:
					select {
					case s.size <- 1 + random.IntN(1500):
					default:
					}
				case 5, 6, 7:
					s.log.Ack(s.log.Acked().Seq + random.Uint64N(3))
				case 8:
					s.log.Poll(random.Uint64N(s.log.LastSeq() + 1))
				case 9:
					s.log.SetEvict(random.IntN(4) == 0)
				case 10:
					s.log.Rewind(Position{})
				case 11:
					if e, ok := s.log.Borrow(random.Uint64N(s.log.LastSeq() + 1)); ok {
						s.log.Return(e)
					}
				}
			}
			for step := range 60 {
				var changes sync.WaitGroup
				for i := range 4 { // at the same time
					changes.Go(func() {
						random := rand.New(rand.NewPCG(seed, uint64(4*step+i)))
						for range 10 {
							change(random)
						}
					})
				}
				changes.Wait()
				if random.IntN(4) == 0 {
					time.Sleep(pollGrace * 2 / 3)
				}
				synctest.Wait()
				if random.IntN(10) == 0 {
					s := streams[random.IntN(len(streams))]
					[]func(){s.log.Abort, s.log.Release}[random.IntN(2)]()
					synctest.Wait()
				}
				checkWaiting(t, fmt.Sprintf("seed %d, step %d", seed, step), streams)
			}
			for _, s := range streams {
				s.log.Abort()
				close(s.size)
			}
			running.Wait()
			for _, s := range streams {
				s.log.Release()
			}
			if c := all.Counts(); c.Retained != 0 || c.Stalled != 0 {
				t.Errorf("seed %d: %d bytes are retained by nobody, %d streams wait", seed, c.Retained, c.Stalled)
			}
		})
	}
}

// checkWaiting sees that no stream waits that could go on.
func checkWaiting(t *testing.T, when string, streams []*stuckStream) {
	t.Helper()
	evictable := func(l *Log) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.chunks) > 0 && l.evictableLocked(&l.chunks[0])
	}
	hasHead := func(l *Log) bool {
		return slices.ContainsFunc(l.streams, func(r streamRecord) bool { return len(r.head) > 0 })
	}
	for i, s := range streams {
		if !s.waiting || s.log.cost >= s.log.limit && !evictable(s.log) {
			continue
		}
		if !s.budget.full() {
			t.Fatalf("%s: stream %d waits, although there is space", when, i)
		}
		for j, from := range streams {
			if s.budget.mayEvict(from.budget) && (evictable(from.log) || hasHead(from.log)) {
				t.Fatalf("%s: stream %d waits, although stream %d has something to evict", when, i, j)
			}
		}
	}
}

// rounds is how often a random test is repeated: less in short tests.
func rounds(n int) int {
	if testing.Short() {
		return n / 10
	}
	return n
}
