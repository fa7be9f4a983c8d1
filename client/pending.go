package client

import "time"

// pending holds events that arrived before their turn.
type pending struct {
	events map[uint64]Event
	bytes  int
	timer  *time.Timer
}

// gapTimeout is how long an event may be missing before the client asks the server for
// it. Servers that do not send in order are late by moments only.
const gapTimeout = time.Second

func (p *pending) empty() bool { return len(p.events) == 0 }

// hold keeps an event and reports whether it could. At the bound it drops the events with
// the highest numbers.
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
		p.pop(highest)
		fits = false
	}
	return fits
}

// add keeps an event regardless of the bound, because it was requested.
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

// pop removes the event of a number and returns it, if it has arrived.
func (p *pending) pop(seq uint64) (Event, bool) {
	e, ok := p.events[seq]
	if ok {
		delete(p.events, seq)
		p.bytes -= len(e.Data)
	}
	return e, ok
}

// startTimer makes f run after gapTimeout, unless a timer runs already. f must find out
// whether events still wait for their turn.
func (p *pending) startTimer(f func()) {
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
