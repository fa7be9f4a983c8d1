package server

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// changePatience is for how long a change keeps all later ones waiting. While
// some have been overtaken already, it is half as long for each of them, but at
// least minChangePatience: of many that wait for the same file system, each
// would otherwise cost those after it a second.
const (
	changePatience    = time.Second
	minChangePatience = 10 * time.Millisecond
)

// maxOvertaken bounds the changes that others may overtake at the same time.
const maxOvertaken = 256

// changes keeps the file operations of one connection that change things in
// their order of arrival (PROTOCOL.md, "Order and concurrency"): each begins
// when the one before it is done. One that takes too long, as on a file system
// whose server is gone, is overtaken by those that are about other paths; those
// about the same wait on.
type changes struct {
	mu    sync.Mutex
	queue []*change // in order of arrival, those under way included
	timer *time.Timer
}

// change is one operation that changes files. The fields below paths are
// guarded by the lock of changes.
type change struct {
	paths []string // that it is about; none if they are unknown

	begin func() // called once, under the lock; must not block
	begun bool
	limit time.Time // when it becomes slow
	slow  bool      // others may overtake it
}

// submit queues a change. begin is called when it is its turn; done must be
// called when it is over.
func (c *changes) submit(paths []string, begin func(*change)) *change {
	x := &change{paths: paths}
	x.begin = func() { begin(x) }
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, x)
	c.advanceLocked()
	return x
}

// done makes room for the changes after x.
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

// advanceLocked begins what may begin.
func (c *changes) advanceLocked() {
	var overtaken []*change // slow ones, and those that wait for them
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

// losePatience lets others overtake what has taken too long.
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

// overlaps reports whether a change is about a path of one of the others, or
// about one above or below it. A change whose paths are unknown may be about any.
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

// isWithin reports whether a clean path is a directory or something in it.
func isWithin(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == filepath.Separator || dir[len(dir)-1] == filepath.Separator)
}
