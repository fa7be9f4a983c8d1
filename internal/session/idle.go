package session

import (
	"cmp"
	"slices"
	"time"

	"execserver/internal/ownership"
	"execserver/protocol"
)

// A session is idle if it holds nothing: no process runs, also in the background, nothing
// is watched, the owner has received every event, and it has no lease.

// busyLocked reports whether a session has processes, watches, undelivered events or a
// lease, apart from background processes. read is the outbox of a connection that said farewell,
// or nil: the events that it was sent count as delivered, unless its client acknowledges
// by itself.
func (s *Session) busyLocked(read *Outbox) bool {
	if s.ended || s.out != nil || s.keep > 0 || len(s.observers) > 0 || len(s.watches) > 0 {
		return true
	}
	for _, e := range s.entries {
		if e.closedAt.IsZero() || !e.delivered() && !read.hasSent(e) {
			return true
		}
	}
	return false
}

// hasSent reports whether the outbox has sent all events of a process to a client that
// does not acknowledge by itself.
func (o *Outbox) hasSent(e *entry) bool {
	if o == nil || o.asks.ProcessAck {
		return false
	}
	v := o.views[e]
	return v != nil && v.at.Seq == e.proc.Log.Last()
}

// endIdle ends a detached session if it is idle, and reports whether it was. The caller
// passes the background processes, because finding them takes time.
func (s *Sessions) endIdle(session *Session, d *detachment, read *Outbox, background map[*ownership.Owner]bool, reason string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.detached[session] != d || background[session.owner] {
		return false
	}
	session.mu.Lock()
	busy := session.busyLocked(read)
	session.mu.Unlock()
	if !busy {
		s.endLocked(session, protocol.EndedBySessionExpired, reason)
	}
	return !busy
}

// farewell ends a session at once if its peer has said farewell and it is idle.
func (s *Sessions) farewell(session *Session, d *detachment, out *Outbox) {
	session.mu.Lock()
	busy := session.busyLocked(out)
	session.mu.Unlock()
	if busy { // known without listing background processes
		return
	}
	background := s.opts.Ownership.LeaveRunning([]*ownership.Owner{session.owner})
	s.endIdle(session, d, out, background, "its client is done")
}

// makeRoom ends the idle session that has been detached for longest if there is no room
// for a new one of a principal, and reports whether it did. A principal that has its quota
// gets room from its own sessions only.
func (s *Sessions) makeRoom(principal string) bool {
	refusal := s.count.Check(principal)
	if refusal == nil {
		return false
	}
	type candidate struct {
		session *Session
		d       *detachment
	}
	var idle []candidate
	var owners []*ownership.Owner
	s.mu.Lock()
	for session, d := range s.detached {
		if refusal.Principal && session.quotaKey != principal {
			continue
		}
		session.mu.Lock()
		if !session.busyLocked(nil) {
			idle = append(idle, candidate{session, d})
			owners = append(owners, session.owner)
		}
		session.mu.Unlock()
	}
	s.mu.Unlock()
	if len(idle) == 0 {
		return false
	}
	slices.SortFunc(idle, func(a, b candidate) int { return cmp.Compare(a.d.order, b.d.order) })
	background := s.opts.Ownership.LeaveRunning(owners)
	return slices.ContainsFunc(idle, func(c candidate) bool {
		return s.endIdle(c.session, c.d, nil, background, "room was needed for another one")
	})
}

// finished reports whether every process of the session has closed.
func (s *Session) finished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if e.closedAt.IsZero() {
			return false
		}
	}
	return true
}

// drainInterval is how often a server that drains looks for finished sessions.
const drainInterval = time.Second

// endFinished ends the sessions that would only hold up a drain: nobody is there, every
// process has ended, and the usual time to come back for the output is over, whatever the
// lease. It calls itself again until no session is left.
func (s *Sessions) endFinished() {
	finished := make(map[*Session]*detachment)
	var owners []*ownership.Owner
	s.mu.Lock()
	over := s.closed || len(s.byID) == 0
	for session, d := range s.detached {
		if time.Since(d.began) >= s.opts.DetachedTTL && session.finished() {
			finished[session] = d
			owners = append(owners, session.owner)
		}
	}
	s.mu.Unlock()
	if over {
		return
	}
	background := s.opts.Ownership.LeaveRunning(owners)
	s.mu.Lock()
	for session, d := range finished {
		if s.detached[session] == d && !background[session.owner] {
			s.endLocked(session, protocol.EndedBySessionExpired, "its commands have ended, and the server drains")
		}
	}
	s.mu.Unlock()
	time.AfterFunc(drainInterval, s.endFinished)
}
