package output

import (
	"fmt"
	"sync"
	"testing"

	"execserver/protocol"
)

// BenchmarkStream takes output from a stream to a client that acknowledges what it has: of one
// process and of eight at the same time, in large reads and in small ones, with a budget that
// holds everything that the logs retain and with one that is always used up.
func BenchmarkStream(b *testing.B) {
	for _, processes := range []int{1, 8} {
		for _, size := range []int{maxChunkBytes, 4 << 10, 100} {
			for name, total := range map[string]int64{"roomy": 1 << 30, "full": int64(processes) << 20} {
				b.Run(fmt.Sprintf("processes=%d/read=%d/%s", processes, size, name), func(b *testing.B) {
					budget := NewBudget(total)
					b.SetBytes(int64(size))
					var streams sync.WaitGroup
					for range processes {
						streams.Go(func() { deliver(budget, size, b.N/processes) })
					}
					streams.Wait()
				})
			}
		}
	}
}

// deliver has a client receive and acknowledge so many reads of a stream.
func deliver(budget *Budget, size, reads int) {
	l := NewLog(4<<20, budget, nil)
	defer l.Release()
	w := l.Writer(protocol.Stdout)
	for range reads {
		for left := size; left > 0; {
			n := len(w.Buffer(min(w.Reserve(), left)))
			w.Commit(n)
			left -= n
			e, _ := l.Borrow(l.LastSeq() - 1)
			l.Return(e)
			l.Ack(e.Seq)
		}
	}
}
