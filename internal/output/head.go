package output

// maxHeadBytes bounds the head of a stream: the beginning of its output, which is kept for
// snapshots when its chunks are evicted.
const maxHeadBytes = 64 << 10

// headLimit returns the bound of a head. It leaves most of the retention to the latest
// output.
func headLimit(retention int64) int { return int(min(maxHeadBytes, retention/8)) }

// keepHeadLocked copies what an evicted chunk has of its stream's beginning to the head,
// and returns how many bytes that is.
func (l *Log) keepHeadLocked(c *chunk) int64 {
	r := l.streamLocked(c.Stream)
	n := min(l.headLimit-len(r.head), len(c.Data))
	if r.lost || n <= 0 {
		return 0
	}
	r.head = append(r.head, c.Data[:n]...)
	if !l.headed {
		l.headed = true
		l.budget.keepsHeads(l, l.born)
	}
	return int64(n)
}

// dropHeadsLocked drops the heads, and returns how many bytes that frees.
func (l *Log) dropHeadsLocked() (freed int64) {
	for i := range l.streams {
		r := &l.streams[i]
		freed += int64(len(r.head))
		r.lost = r.lost || len(r.head) > 0
		r.head = nil
	}
	return freed
}

// dropHeads drops the heads for the budget, which has removed the log from those that have
// any.
func (l *Log) dropHeads() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.headed = false
	freed := l.dropHeadsLocked()
	l.cost -= freed
	l.budget.use(-freed)
}
