package client

import "time"

// pending holds events whose turn has not come.
type pending struct {
	events map[uint64]Event
	bytes  int
	timer  *time.Timer
}

// gapTimeout is how long a missing event may take before the server is asked
// for it. Servers that do not send in order are late by moments only.
const gapTimeout = time.Second

func (p *pending) empty() bool { return len(p.events) == 0 }

// hold keeps an event and says whether it could: at the bound those with the
// highest numbers go.
func (p *pending) hold(e Event) bool {
	if _, ok := p.events[e.Seq]; ok {
		return true
	}
	if p.events == nil {
		p.events = make(map[uint64]Event)
	}
	p.events[e.Seq] = e
	p.bytes += len(e.Data)
	fits := true
	for len(p.events) > maxPendingEvents || p.bytes > maxPendingBytes {
		highest := uint64(0)
		for seq := range p.events {
			highest = max(highest, seq)
		}
		p.take(highest)
		fits = false
	}
	return fits
}

// add keeps an event whatever the bound says, for it was asked for.
func (p *pending) add(e Event) {
	if p.events == nil {
		p.events = make(map[uint64]Event)
	}
	if _, ok := p.events[e.Seq]; !ok {
		p.bytes += len(e.Data)
	}
	p.events[e.Seq] = e
}

func (p *pending) has(seq uint64) bool {
	_, ok := p.events[seq]
	return ok
}

func (p *pending) take(seq uint64) (Event, bool) {
	e, ok := p.events[seq]
	if ok {
		delete(p.events, seq)
		p.bytes -= len(e.Data)
	}
	return e, ok
}

// since sees to it that f runs if events are still waiting for their turn after
// gapTimeout.
func (p *pending) since(f func()) {
	if p.timer == nil {
		p.timer = time.AfterFunc(gapTimeout, f)
	}
}

func (p *pending) clear() {
	p.events, p.bytes = nil, 0
	if p.timer != nil {
		p.timer.Stop()
	}
}
