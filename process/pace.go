package process

import "time"

// pace decides when to tell of new output. Of a process that writes little it is
// told at once; of one that writes much when there is enough for a large chunk,
// or after gatherTime: small chunks cost more than large ones, on both ends.
type pace struct {
	since  time.Time // when the window began
	bytes  int       // of output since then
	before int       // of output in the window before
	late   *time.Timer
	armed  bool // late is going to tell
}

const (
	// A process writes much if it has written bulkBytes within bulkWindow,
	// which nobody reads or types.
	bulkBytes  = 16 << 10
	bulkWindow = time.Millisecond

	// enoughBytes is a chunk that hardly grows any more; see stream.buffer.
	enoughBytes = maxChunkBytes * 3 / 4

	gatherTime = 500 * time.Microsecond
)

// now reports whether to tell at once of n bytes more, which made the last chunk
// as large as given; otherwise it sees to it that late is called in time.
func (p *pace) now(n, chunk int, late func()) bool {
	now := time.Now()
	if passed := now.Sub(p.since); passed >= bulkWindow {
		p.before = p.bytes
		if passed >= 2*bulkWindow {
			p.before = 0
		}
		p.since, p.bytes = now, 0
	}
	bulk := p.before >= bulkBytes || p.bytes >= bulkBytes
	p.bytes += n
	switch {
	case !bulk || chunk >= enoughBytes:
		return true
	case p.late == nil:
		p.late = time.AfterFunc(gatherTime, late)
	case !p.armed:
		p.late.Reset(gatherTime)
	}
	p.armed = true
	return false
}

// stop keeps late from being called, unless it is being called already.
func (p *pace) stop() {
	if p.late != nil {
		p.late.Stop()
	}
}
