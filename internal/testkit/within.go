package testkit

import (
	"fmt"
	"os"
	"runtime/pprof"
	"testing"
	"time"
)

// Patience is the time for which a test waits for an event that must come. It is much
// longer than any event takes, because the machine may be busy.
const Patience = 5 * time.Minute

// WaitFor polls until check returns nil, and fails the test if that takes longer than
// limit. Use it only where there is no channel to wait on.
func WaitFor(t testing.TB, limit time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %v", limit, err)
		}
		time.Sleep(pause)
	}
}

// Within runs f and ends the program, with the stacks of all goroutines, if f takes
// longer than Patience.
func Within(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(Patience):
		// The test's cleanups run before the panic ends the program, and with them end
		// the goroutines that would tell the cause.
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
		// They may wait for what takes too long, and keep the panic from being printed.
		time.AfterFunc(Patience, func() {
			fmt.Fprintln(os.Stderr, t.Name()+": "+what+" takes too long, and so do the cleanups")
			os.Exit(2)
		})
		panic(what + " takes too long")
	}
}
