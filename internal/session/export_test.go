package session

// Count returns the number of sessions, attached or detached.
func (s *Sessions) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}

// ListSome is List with another limit.
var ListSome = (*Sessions).listSome

// Unacknowledged returns how many processes the outbox remembers because their events are
// not acknowledged, counted once for each ping.
func (o *Outbox) Unacknowledged() (n int) {
	o.session.mu.Lock()
	defer o.session.mu.Unlock()
	n = len(o.sent)
	for _, p := range o.pings {
		n += len(p.sent)
	}
	return n
}
