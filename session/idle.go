package session

import (
	"cmp"
	"slices"

	"execserver/process"
	"execserver/protocol"
)

// A session is idle when nobody would miss it: nothing runs, in the background
// neither, nothing is watched, and its owner knows everything that there was to
// tell.

// busyLocked reports whether a session has something that is still running or
// untold, besides what runs in the background. read is the outbox of a connection
// that said farewell: what it was sent counts as read, unless it acknowledges by
// itself; nil: there is none.
func (s *Session) busyLocked(read *Outbox) bool {
	if s.ended || s.out != nil || len(s.observers) > 0 || len(s.watches) > 0 {
		return true
	}
	for _, e := range s.entries {
		if e.closedAt.IsZero() || !e.delivered() && !read.hasSent(e) {
			return true
		}
	}
	return false
}

// hasSent reports whether the connection of an outbox was sent all events of a
// process, and does not say itself what it has of them.
func (o *Outbox) hasSent(e *entry) bool {
	if o == nil || o.asks.ProcessAck {
		return false
	}
	v := o.views[e]
	return v != nil && v.at.Seq == e.proc.Log.Last()
}

// endIdle ends a detached session if it is idle, and reports whether it was. What
// runs in the background is given, for it takes time to be found out.
func (s *Sessions) endIdle(session *Session, d *detachment, read *Outbox, background map[*process.Owner]bool, reason string) bool {
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

// farewell ends a session at once whose peer has said that it is done, and has left
// nothing.
func (s *Sessions) farewell(session *Session, d *detachment, out *Outbox) {
	session.mu.Lock()
	busy := session.busyLocked(out)
	session.mu.Unlock()
	if busy { // which is known without a look at what runs
		return
	}
	background := s.opts.Ownership.LeaveRunning([]*process.Owner{session.owner})
	s.endIdle(session, d, out, background, "its client is done")
}

// makeRoom ends the session that is idle and has been detached for longest, and
// reports whether there was one.
func (s *Sessions) makeRoom() bool {
	type candidate struct {
		session *Session
		d       *detachment
	}
	var idle []candidate
	var owners []*process.Owner
	s.mu.Lock()
	for session, d := range s.detached {
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
