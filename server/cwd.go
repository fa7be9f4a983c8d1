package server

import (
	"os"
	"sync"
	"time"
)

// cwd finds the directory of the program. A file system that hangs there must not keep
// everybody out: only one goroutine asks it at a time, and the others go on with what is known.
type cwd struct {
	mu     sync.Mutex
	known  string        // "" if it is unknown, or gone
	asking chan struct{} // closed with the answer; nil if nobody asks
	since  time.Time
}

// cwdTimeout is how long the file system may take to answer.
const cwdTimeout = 100 * time.Millisecond

// get returns the directory, or "" if it is unknown, or gone.
func (c *cwd) get() string {
	c.mu.Lock()
	if c.asking == nil {
		c.asking, c.since = make(chan struct{}), time.Now()
		go c.ask() // ends with the answer
	}
	asking, patience := c.asking, cwdTimeout-time.Since(c.since)
	c.mu.Unlock()
	if patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-asking:
		case <-timer.C:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known
}

func (c *cwd) ask() {
	dir, _ := os.Getwd()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = dir
	close(c.asking)
	c.asking = nil
}
