package session

import (
	"sync/atomic"

	"execserver/internal/output"
	"execserver/internal/quota"
)

// Counts are what Sessions have seen and have. Numbers of what happened only grow.
type Counts struct {
	Created, Resumed, Ended uint64 // sessions
	Attached, Detached      int    // sessions now
	Started                 uint64 // processes
	Output                  output.Counts
}

type counts struct{ resumed, ended, started atomic.Uint64 }

// Counts returns what the sessions have seen and have.
func (s *Sessions) Counts() Counts {
	c := Counts{
		Resumed: s.counts.resumed.Load(), Ended: s.counts.ended.Load(), Started: s.counts.started.Load(),
		Output: s.opts.Budget.Counts(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Created, c.Detached = s.creates, len(s.detached)
	c.Attached = len(s.byID) - c.Detached
	return c
}

// Full reports whether a new session would be refused to every client: there are as many
// as there may be, and none of them is idle. It ignores what closed processes have left
// running, because finding that takes time.
func (s *Sessions) Full() bool {
	if s.count.Check(quota.Everybody) == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for session := range s.detached {
		session.mu.Lock()
		busy := session.busyLocked(nil)
		session.mu.Unlock()
		if !busy {
			return false
		}
	}
	return true
}
