package process

import "time"

// QuietTime changes how long streams must be quiet before a process closes that has left
// them to others.
func (o *Options) QuietTime(d time.Duration) { o.quietTime = d }

// RememberedWrites returns how many writeIds the process remembers, and what they cost.
func (p *Process) RememberedWrites() (ids, cost int) {
	p.stdin.mu.Lock()
	defer p.stdin.mu.Unlock()
	return len(p.stdin.seen), p.stdin.seenCost
}
