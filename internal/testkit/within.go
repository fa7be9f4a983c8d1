package testkit

import (
	"testing"
	"time"
)

// Within runs f, which must not take longer than the limit. If it does, the
// program ends with the stacks of all goroutines.
func Within(t testing.TB, limit time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		panic(what + " takes too long")
	}
}
