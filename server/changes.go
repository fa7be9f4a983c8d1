package server

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// changePatience is how long a change may delay all later ones. It halves with each
// overtaken change, down to minChangePatience: each of many changes that wait for the
// same file system would otherwise delay later ones by a second.
const (
	changePatience    = time.Second
	minChangePatience = 10 * time.Millisecond
)

// maxOvertaken bounds the number of overtaken changes at a time.
const maxOvertaken = 256

// changes keeps the file changes of one connection in their order of arrival
// (PROTOCOL.md, "Order and concurrency"): each begins when the one before is done.
// Changes of other paths overtake one that takes too long, as on a file system whose
// server is gone; changes of the same path still wait.
type changes struct {
	mu    sync.Mutex
	queue []*change // in order of arrival, with those in progress
	timer *time.Timer
}

// change is one operation that changes files. The lock of changes guards the fields below
// paths.
type change struct {
	paths []string // the paths that it concerns; none if unknown

	begin func() // called once, under the lock; must not block
	begun bool
	limit time.Time // when it becomes slow
	slow  bool      // others may overtake it
}

// submit queues a change. It calls begin when it is the change's turn; the caller must
// call done when the change is over.
func (c *changes) submit(paths []string, begin func(*change)) *change {
	x := &change{paths: paths}
	x.begin = func() { begin(x) }
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, x)
	c.advanceLocked()
	return x
}

// done removes x and begins the changes that waited for it.
func (c *changes) done(x *change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.queue, x); i == 0 {
		c.queue[0] = nil
		c.queue = c.queue[1:]
	} else {
		c.queue = slices.Delete(c.queue, i, i+1)
	}
	c.advanceLocked()
}

// advanceLocked begins the changes that may begin.
func (c *changes) advanceLocked() {
	var overtaken []*change // slow changes, and those that wait for them
	for i, x := range c.queue {
		switch {
		case len(overtaken) == maxOvertaken:
			return
		case x.slow, !x.begun && overlaps(x, overtaken):
			overtaken = append(overtaken, x)
			continue
		case !x.begun:
			patience := max(changePatience>>len(overtaken), minChangePatience)
			x.begun, x.limit = true, time.Now().Add(patience)
			x.begin()
		}
		if i+1 < len(c.queue) && c.timer == nil {
			c.timer = time.AfterFunc(time.Until(x.limit), c.losePatience)
		}
		return
	}
}

// losePatience lets others overtake changes that have taken too long.
func (c *changes) losePatience() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = nil
	now := time.Now()
	for _, x := range c.queue {
		if x.begun && !x.limit.After(now) {
			x.slow = true
		}
	}
	c.advanceLocked()
}

// overlaps reports whether a change concerns a path of one of the others, or one above or
// below it. A change with unknown paths overlaps with all.
func overlaps(x *change, others []*change) bool {
	for _, other := range others {
		if len(x.paths) == 0 || len(other.paths) == 0 {
			return true
		}
		for _, a := range x.paths {
			for _, b := range other.paths {
				if isWithin(a, b) || isWithin(b, a) {
					return true
				}
			}
		}
	}
	return false
}

// isWithin reports whether a clean path is dir or in it.
func isWithin(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == filepath.Separator || dir[len(dir)-1] == filepath.Separator)
}
