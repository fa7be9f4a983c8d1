package output

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/testkit"
	"execserver/protocol"
)

// listener calls those of the functions that a test gives it.
type listener struct{ changed, blocked func() }

func (l listener) Changed() {
	if l.changed != nil {
		l.changed()
	}
}

func (l listener) Blocked() {
	if l.blocked != nil {
		l.blocked()
	}
}

// readLog makes a log that has output which its owner has.
func readLog(limit int64, budget *Budget, sizes ...int) *Log {
	l := NewLog(limit, budget, nil)
	for _, n := range sizes {
		l.append(protocol.Stdout, make([]byte, n), nil)
		l.Borrow(l.LastSeq() - 1) // so that it does not grow
	}
	l.Ack(l.LastSeq())
	return l
}

// waitsForSpace reports whether a stream of the log waits for space, which comes on
// the channel that it returns.
func waitsForSpace(t *testing.T, l *Log) <-chan int {
	t.Helper()
	space := make(chan int, 1)
	go func() { space <- l.reserve() }()
	synctest.Wait()
	select {
	case n := <-space:
		t.Fatalf("space for %d bytes in a budget that is used up", n)
	default:
	}
	return space
}

// What a reader that polls has not read counts against the budget until it reads
// on.
func TestPollMakesRoomInTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := NewBudget(1000)
		read := readLog(1<<20, budget, 600, 600)
		defer read.Release()
		read.Poll(0)
		other := NewLog(1<<20, budget, nil)
		defer other.Release()
		space := waitsForSpace(t, other)
		read.Poll(1)
		synctest.Wait()
		select {
		case <-space:
		default:
			t.Error("no space although the first chunk was read")
		}
		if read.Read(0, nil).FirstSeq != 2 {
			t.Error("what was not read is gone")
		}
	})
}

// Output that a reader has stopped polling is protected for the grace period only.
func TestEndOfPollingMakesRoomInTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := NewBudget(1000)
		read := readLog(1<<20, budget, 600, 600)
		defer read.Release()
		begin := time.Now()
		read.Poll(0)
		other := NewLog(1<<20, budget, nil)
		defer other.Release()
		space := waitsForSpace(t, other)
		time.Sleep(pollGrace / 2)
		read.Poll(0)
		n := <-space
		if took := time.Since(begin); n == 0 || took != pollGrace*3/2 {
			t.Errorf("space for %d bytes after %v", n, took)
		}
	})
}

// Making space evicts what is needed for a while, and not half of everything.
func TestEvictionForOneRead(t *testing.T) {
	const limit = 64 << 20
	budget := NewBudget(limit)
	sizes := make([]int, limit>>20)
	for i := range sizes {
		sizes[i] = 1 << 20
	}
	old := readLog(2*limit, budget, sizes...)
	defer old.Release()
	if n := old.reserve(); n == 0 || budget.Used() >= limit {
		t.Fatalf("space for %d bytes, %d of %d are used", n, budget.Used(), limit)
	}
	if used := budget.Used(); used < limit-3<<20 {
		t.Errorf("%d MiB of %d were evicted for one read", (limit-used)>>20, limit>>20)
	}
}

// manyLogs is how many processes some clients keep.
const manyLogs = 4000

// The search for the oldest output takes about as long whatever the number of
// processes.
func TestSearchAmongManyLogs(t *testing.T) {
	const size = 1000
	budget := NewBudget(manyLogs * (size + chunkCost))
	logs := make([]*Log, manyLogs)
	for i := range logs {
		logs[i] = readLog(1<<20, budget)
		defer logs[i].Release()
	}
	rounds := 10
	if testkit.RaceEnabled {
		rounds = 3
	}
	begin := time.Now()
	for range rounds {
		for _, l := range logs {
			l.append(protocol.Stdout, make([]byte, size), nil)
			l.Ack(l.LastSeq())
			if l.reserve() == 0 {
				t.Fatal("no space")
			}
		}
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("%d searches among %d logs took %v", rounds*manyLogs, manyLogs, took)
	}
}

// Thousands of processes wait for the budget at no cost: a change that frees no space wakes
// none of them, and one that does wakes all that fit.
func TestManyLogsWaitForTheBudget(t *testing.T) {
	const size = 1000
	budget := NewBudget(manyLogs * (size + chunkCost))
	logs := make([]*Log, manyLogs)
	var waiting, done sync.WaitGroup
	for i := range logs {
		waiting.Add(1)
		logs[i] = NewLog(1<<20, budget, listener{blocked: sync.OnceFunc(waiting.Done)})
		logs[i].append(protocol.Stdout, make([]byte, size), nil)
		logs[i].Borrow(0)
	}
	begin := time.Now()
	for _, l := range logs {
		done.Go(func() {
			if l.reserve() == 0 {
				t.Error("no space")
			}
		})
	}
	waiting.Wait()
	for range 5 {
		for _, l := range logs {
			l.Ack(0)
		}
	}
	logs[0].Ack(1)
	done.Wait()
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("%d logs waited for %v", manyLogs, took)
	}
	for _, l := range logs {
		l.Release()
	}
}

// A principal that has used up its quota waits alone: it neither holds up others nor evicts their
// output. The others evict its output.
func TestQuotasOfTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := NewBudget(6000) // 3000 for each
		greedy, modest := budget.ForPrincipal("greedy"), budget.ForPrincipal("modest")
		defer greedy.Release()
		defer modest.Release()
		flood := NewLog(1<<20, greedy, nil)
		defer flood.Release()
		for range 3 {
			flood.append(protocol.Stdout, make([]byte, 1000), nil)
			flood.Borrow(flood.LastSeq() - 1)
		}
		space := waitsForSpace(t, flood)
		small := readLog(1<<20, modest, 400)
		defer small.Release()
		if small.reserve() == 0 {
			t.Error("no space for another principal")
		}
		synctest.Wait()
		if small.Read(0, nil).FirstSeq > 1 {
			t.Error("the output of a principal that retains less was evicted")
		}
		flood.Ack(3)
		synctest.Wait()
		select {
		case <-space:
		default:
			t.Error("no space although everything was acknowledged")
		}
		// The principal that retains most makes space for the others.
		big := readLog(1<<20, greedy, 5000)
		defer big.Release()
		small.append(protocol.Stdout, make([]byte, 1000), nil)
		if small.reserve() == 0 || big.Read(0, nil).DroppedBytes == 0 {
			t.Error("what others have of a principal that retains most was not evicted")
		}
	})
}
