package transport

import (
	"testing"
	"time"
)

// SetCloseTimeout sets, for a test that runs alone, how long the peer may take to answer a
// close frame.
func SetCloseTimeout(t testing.TB, d time.Duration) {
	before := closeTimeout
	closeTimeout = d
	t.Cleanup(func() { closeTimeout = before })
}
