package seldom_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/seldom"
)

// TestLine writes a line of many, and tells how many were left out with the next one.
func TestLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := seldom.Line{Pause: time.Second}
		for round, want := range []int{0, 99, 99} {
			var written, left atomic.Int64
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() {
					if leftOut, due := line.Due(); due {
						written.Add(1)
						left.Add(int64(leftOut))
					}
				})
			}
			all.Wait()
			if written.Load() != 1 || left.Load() != int64(want) {
				t.Errorf("round %d: %d lines, and %d were left out, want 1 and %d", round, written.Load(), left.Load(), want)
			}
			time.Sleep(time.Second)
		}
	})
}
