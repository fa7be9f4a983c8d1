package fleet_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"execserver/fleet/internal/fleet"
)

// TestLogLimit logs one line of many, and says with the next one how many were suppressed.
func TestLogLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := fleet.LogLimit{Pause: time.Second}
		for round, want := range []int{0, 99, 99} {
			var written, left atomic.Int64
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() {
					if suppressed, ok := line.Allow(); ok {
						written.Add(1)
						left.Add(int64(suppressed))
					}
				})
			}
			all.Wait()
			if written.Load() != 1 || left.Load() != int64(want) {
				t.Errorf("round %d: %d lines, and %d were suppressed, want 1 and %d", round, written.Load(), left.Load(), want)
			}
			time.Sleep(time.Second)
		}
	})
}
