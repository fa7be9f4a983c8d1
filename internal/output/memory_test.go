package output

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"execserver/protocol"
)

// A segment is recycled, for any stream, when nothing refers to it any more, and not
// before: clients that receive, keep and read the output of several streams find what was
// written.
func TestMemoryIsFilledAgain(t *testing.T) {
	const streams, each = 4, 8 << 20
	budget := NewBudget(streams * 256 << 10)
	content := func(of, at uint64) byte { return byte(of + at%251) }
	check := func(of uint64, e Event) {
		t.Helper()
		for i, c := range e.Output.Data {
			if c != content(of, e.Offset+uint64(i)) {
				t.Errorf("byte %d of stream %d is that of another place", e.Offset+uint64(i), of)
				return
			}
		}
	}
	var running sync.WaitGroup
	for of := range uint64(streams) {
		running.Go(func() {
			random := rand.New(rand.NewPCG(of, 0))
			l := NewLog(512<<10, budget, nil)
			defer l.Release()
			w := l.Writer(protocol.Stdout)
			var borrowed []Event
			for written := uint64(0); written < each; {
				buf := w.Buffer(min(w.Reserve(), 1+random.IntN(maxChunkBytes)))
				for i := range buf {
					buf[i] = content(of, written+uint64(i))
				}
				w.Commit(len(buf))
				written += uint64(len(buf))
				e, _ := l.Borrow(l.LastSeq() - 1)
				borrowed = append(borrowed, e)
				l.Ack(e.Seq)
				if random.IntN(8) == 0 {
					chunks := l.Read(l.LastSeq()-1, nil).Chunks
					defer check(of, Event{Offset: e.Offset, Output: chunks[0]})
				}
				if len(borrowed) > 6 {
					for _, e := range borrowed {
						check(of, e)
						l.Return(e)
					}
					borrowed = nil
				}
			}
		})
	}
	running.Wait()
}

// All the memory that retained output keeps alive counts against the budget, even if little
// of it is output, such as the last bytes of many processes that have written much.
func TestBudgetBoundsMemory(t *testing.T) { // not parallel: it measures the heap
	const (
		total = 8 << 20
		logs  = 512
		each  = 4 << 10 // of memory for a log without output, and more
	)
	heap := func() uint64 {
		var m runtime.MemStats
		for range 3 { // what a sync.Pool has survives one or two
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	synctest.Test(t, func(t *testing.T) {
		budget := NewBudget(total)
		before := heap()
		var all []*Log
		for range logs {
			l := NewLog(4<<20, budget, nil)
			defer l.Release()
			all = append(all, l)
			go func() {
				w := l.Writer(protocol.Stdout)
				write := func(bytes int) {
					for bytes > 0 {
						n := len(w.Buffer(min(w.Reserve(), bytes)))
						if n == 0 {
							return // the test is over
						}
						w.Commit(n)
						bytes -= n
					}
				}
				write(300_000) // so that what follows lies in a segment of the largest size
				l.Ack(l.LastSeq())
				write(100)
				l.Exit(protocol.ExitRecord{})
				l.Close(false)
			}()
			synctest.Wait()
		}
		if held := int64(heap() - before); held > total+maxChunkBytes+logs*each {
			t.Errorf("%d KiB of memory are alive, the budget has %d KiB of %d", held>>10, budget.Used()>>10, total>>10)
		}
		runtime.KeepAlive(all)
	})
}
