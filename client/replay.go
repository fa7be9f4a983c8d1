package client

// replay holds the last events of a process for late or slow subscribers. Its numbers
// have no gaps.
type replay struct {
	maxEvents, maxBytes int

	ring  []Event // grows up to maxEvents
	head  int     // index of the oldest
	count int
	bytes int
}

func (r *replay) add(e Event) {
	if r.count == r.maxEvents {
		r.evict()
	}
	if r.count == len(r.ring) {
		r.grow()
	}
	r.ring[(r.head+r.count)%len(r.ring)] = e
	r.count++
	for r.bytes += len(e.Data); r.bytes > r.maxBytes && r.count > 0; {
		r.evict()
	}
}

func (r *replay) evict() {
	r.bytes -= len(r.ring[r.head].Data)
	r.ring[r.head] = Event{}
	r.head = (r.head + 1) % len(r.ring)
	r.count--
}

func (r *replay) grow() {
	ring := make([]Event, min(max(8, 2*len(r.ring)), r.maxEvents))
	for i := range r.count {
		ring[i] = r.ring[(r.head+i)%len(r.ring)]
	}
	r.ring, r.head = ring, 0
}

// put adds an event, before which others may be missing.
func (r *replay) put(e Event) {
	for r.count > 0 && e.Seq != r.first()+uint64(r.count) {
		r.evict()
	}
	r.add(e)
}

// find returns the event with a number, if it is held.
func (r *replay) find(seq uint64) (Event, bool) {
	if first := r.first(); first == 0 || seq < first || seq >= first+uint64(r.count) {
		return Event{}, false
	}
	return r.get(seq), true
}

// first returns the number of the oldest event held, or 0.
func (r *replay) first() uint64 {
	if r.count == 0 {
		return 0
	}
	return r.ring[r.head].Seq
}

// get returns the event with a number from first to the latest.
func (r *replay) get(seq uint64) Event {
	return r.ring[(r.head+int(seq-r.first()))%len(r.ring)]
}
