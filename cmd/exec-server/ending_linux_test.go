package main

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// TestManyProcessesEnd checks that a server without control groups serves others as usual
// while many processes end.
func TestManyProcessesEnd(t *testing.T) {
	t.Run("with their session", func(t *testing.T) {
		manyProcessesEnd(t, func(p *ownedProgram, c *wireClient, _ int) { p.leave(c) })
	})
	t.Run("one by one", func(t *testing.T) {
		manyProcessesEnd(t, func(p *ownedProgram, c *wireClient, many int) {
			for i := range many {
				_, _ = c.Begin("process/terminate", object{"processId": fmt.Sprint(i)})
			}
		})
	})
}

func manyProcessesEnd(t *testing.T, end func(p *ownedProgram, c *wireClient, many int)) {
	many := 100
	if quiet { // only there does it matter how long others wait meanwhile
		many = 1500
	}
	p := startListening(t, nil, "--without=cgroups", "--detached-session-ttl=100ms")
	c := p.connect()
	word := newWord()
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := worker; i < many; i += 8 {
				c.start(object{
					"processId": fmt.Sprint(i), "argv": []string{"/bin/sleep", "600"}, "arg0": "sleep-" + word, "cwd": "/", "env": object{}, "tty": false,
				})
			}
		})
	}
	wg.Wait()
	left := func() int {
		n := 0
		for _, pid := range testkit.Children(p.server()) {
			if testkit.Alive(pid) {
				n++
			}
		}
		return n
	}
	if n := left(); n != many {
		t.Fatalf("%d processes run, want %d", n, many)
	}
	end(p, c, many)
	// If both servers wait, the machine is the cause, not the server under test.
	took, idle := initializeUntil(t, func() error {
		if n := left(); n > 0 {
			return fmt.Errorf("%d processes are left", n)
		}
		return nil
	}, p, startListening(t, nil))
	t.Logf("initialize: %v; of an idle server: %v", took, idle)
	// On a busy machine, a server that works waits for a processor; there it only has to answer.
	limit := testkit.Patience
	if quiet {
		limit = 100 * time.Millisecond
	}
	if took.p99 > limit {
		t.Errorf("initialize took %v while %d processes ended", took, many)
	}
}

// waits are the times between requests and their replies.
type waits struct {
	n                  int
	median, p99, worst time.Duration
}

func (w waits) String() string {
	return fmt.Sprintf("%d times, median %v, 99 of 100 in %v, the slowest %v", w.n, w.median, w.p99, w.worst)
}

// initializeUntil opens connections to two servers in turn, until check returns nil, and on a
// quiet machine for a moment after that. It returns how long initialize took on each.
func initializeUntil(t *testing.T, check func() error, a, b *ownedProgram) (waits, waits) {
	t.Helper()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var result [2]waits
	for i, p := range []*ownedProgram{a, b} {
		wg.Go(func() { result[i] = p.initializeAgain(stop) })
	}
	testkit.WaitFor(t, testkit.Patience, check)
	if quiet {
		time.Sleep(200 * time.Millisecond) // the kernel still frees the memory of the processes
	}
	close(stop)
	wg.Wait()
	return result[0], result[1]
}

// initializeAgain opens connections until stop is closed.
func (p *ownedProgram) initializeAgain(stop <-chan struct{}) waits {
	var took []time.Duration
	for {
		before := time.Now()
		c := p.connect()
		took = append(took, time.Since(before))
		p.leave(c)
		select {
		case <-stop:
			slices.Sort(took)
			n := len(took)
			return waits{n, took[n/2], took[n*99/100], took[n-1]}
		case <-time.After(2 * time.Millisecond):
		}
	}
}
