package testkit

import "time"

// Stalled runs f, and returns for how long this program stood still meanwhile, because the
// machine was busy or stopped. A test that says how soon something happens takes that off.
func Stalled(f func()) (stalled time.Duration) {
	const step = 10 * time.Millisecond
	over, sum := make(chan struct{}), make(chan time.Duration, 1)
	start := time.Now()
	go func() {
		var late time.Duration
		for ; ; start = time.Now() {
			ended := false
			select {
			case <-over:
				ended = true
			case <-time.After(step):
			}
			if took := time.Since(start); took > 2*step {
				late += took - step
			}
			if ended {
				sum <- late
				return
			}
		}
	}()
	func() {
		defer close(over) // also if f ends the test
		f()
	}()
	return <-sum
}

// Steady runs f again while it fails and the program stood still for a second or more: f may
// have missed a deadline of seconds, which no program keeps then.
func Steady(f func() error) (err error) {
	for {
		stalled := Stalled(func() { err = f() })
		if err == nil || stalled < time.Second {
			return err
		}
	}
}
