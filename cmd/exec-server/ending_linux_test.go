package main

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// While many processes end, without control groups, others are served as usual.
func TestManyProcessesEnd(t *testing.T) {
	t.Run("with their session", func(t *testing.T) {
		manyProcessesEnd(t, func(c *follower, _ int) { _ = c.w.Close() })
	})
	t.Run("one by one", func(t *testing.T) {
		manyProcessesEnd(t, func(c *follower, many int) {
			for i := range many {
				c.send(params{"id": many + i, "method": "process/terminate", "params": params{"processId": fmt.Sprint(i)}})
			}
		})
	})
}

func manyProcessesEnd(t *testing.T, end func(c *follower, many int)) {
	const many = 1500
	p := startListening(t, nil, "--cgroups=off", "--detached-session-ttl=100ms")
	c := p.connect()
	word := newWord()
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := worker; i < many; i += 8 {
				c.start(params{
					"processId": fmt.Sprint(i), "argv": []string{"/bin/sleep", "600"}, "arg0": "sleep-" + word, "cwd": "/", "env": params{}, "tty": false,
				})
			}
		})
	}
	wg.Wait()
	left := func() int {
		n := 0
		for _, pid := range childrenOf(p.server()) {
			if testkit.Alive(pid) {
				n++
			}
		}
		return n
	}
	if n := left(); n != many {
		t.Fatalf("%d processes run, want %d", n, many)
	}
	idle := slices.Max(p.initializeUntil(func() bool { return true })) // the machine may be busy
	end(c, many)
	took := p.initializeUntil(func() bool { return left() == 0 })
	slices.Sort(took)
	last := took[len(took)-1]
	t.Logf("initialize, %d times: median %v, 99 of 100 in %v, the slowest %v", len(took), took[len(took)/2], took[len(took)*99/100], last)
	if most := took[len(took)*99/100]; most > 500*time.Millisecond+50*idle {
		t.Errorf("initialize took up to %v while %d processes ended", last, many)
	}
}

// initializeUntil opens connections, one every few milliseconds, until done says so
// and for a moment after that, and returns how long each waited for initialize.
func (p *ownedProgram) initializeUntil(done func() bool) (took []time.Duration) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			wg.Go(func() {
				before := time.Now()
				c := p.connect()
				mu.Lock()
				took = append(took, time.Since(before))
				mu.Unlock()
				_ = c.w.Close()
			})
		}
	})
	for begun := time.Now(); !done() && time.Since(begun) < patience; {
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(200 * time.Millisecond) // the memory of the processes is given back
	close(stop)
	wg.Wait()
	return took
}
