package process

// maxHeadBytes is how much of the beginning of each stream is kept for snapshots
// when the retention evicts it, less where the retention is small.
const maxHeadBytes = 64 << 10

// headLimit leaves most of a retention to the latest output.
func headLimit(retention int64) int { return int(min(maxHeadBytes, retention/8)) }

// streamRecord is what a log knows of one stream besides its chunks.
type streamRecord struct {
	name  string
	total uint64 // bytes ever numbered
	head  []byte // its first bytes, those that were evicted
	lost  bool   // the head had to be given up
}

// streamLocked returns the record of a stream; there are two at most.
func (l *Log) streamLocked(name string) *streamRecord {
	for i := range l.streams {
		if l.streams[i].name == name {
			return &l.streams[i]
		}
	}
	l.streams = append(l.streams, streamRecord{name: name})
	return &l.streams[len(l.streams)-1]
}

// keepHeadLocked keeps what a chunk that is evicted holds of the beginning of
// its stream, and returns how many bytes that is.
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

// dropHeadsLocked gives the heads up, and returns how many bytes that frees.
func (l *Log) dropHeadsLocked() (freed int64) {
	for i := range l.streams {
		r := &l.streams[i]
		freed += int64(len(r.head))
		r.lost = r.lost || len(r.head) > 0
		r.head = nil
	}
	return freed
}

// giveHeadsUp makes room in the budget, which has taken the log from those that
// have heads.
func (l *Log) giveHeadsUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.headed = false
	freed := l.dropHeadsLocked()
	l.cost -= freed
	l.budget.use(-freed)
}
