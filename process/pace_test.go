package process

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"execserver/protocol"
)

// TestOutputIsToldInTime gathers the output of who writes much, for a while, and
// tells of everything else at once.
func TestOutputIsToldInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // for a timer tells, too
		told, seen := 0, uint64(0)
		var l *Log
		l = newLog(1<<20, NewBudget(1<<20), func() {
			mu.Lock()
			defer mu.Unlock()
			told++
			for e, ok := l.Next(seen); ok; e, ok = l.Next(seen) {
				seen = e.Seq
			}
		}, func() {})
		defer l.release()
		segment := make([]byte, 0, 1<<20)
		write := func(n int) {
			from := len(segment)
			segment = segment[:from+n]
			l.append(protocol.Stdout, segment[from:], nil)
		}
		check := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if told != want {
				t.Errorf("%s: told %d times, want %d", when, told, want)
			}
			told = 0
		}
		for range 4 {
			write(4 << 10)
		}
		check("little", 4)
		write(4 << 10)
		write(4 << 10)
		check("much", 0)
		time.Sleep(gatherTime - 1)
		check("before it is time", 0)
		time.Sleep(time.Nanosecond)
		check("when it is time", 1)
		for range 11 {
			write(4 << 10)
		}
		check("not enough", 0)
		write(4 << 10)
		check("enough for a large chunk", 1)
		time.Sleep(time.Millisecond)
		check("the timer", 1)
		write(1)
		check("still much", 0)
		time.Sleep(time.Millisecond)
		check("a little later", 1)
		time.Sleep(2 * time.Millisecond)
		write(1)
		check("after a pause", 1)
		for range 6 {
			write(4 << 10)
		}
		check("much once more", 4)
		write(1)
		check("much again", 0)
		l.exited(protocol.ExitRecord{})
		check("the end", 1)
	})
}
