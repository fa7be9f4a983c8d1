package session

import (
	"slices"
	"time"
)

// noteClosedLocked starts the timer of a process that has closed and whose streams nobody
// holds any more. Until then it counts as live, because it costs as much.
func (s *Session) noteClosedLocked(e *entry) {
	if e.proc == nil || !e.closedAt.IsZero() || !e.proc.Log.IsClosed() || e.proc.Log.Held() {
		return
	}
	e.closedAt = time.Now()
	s.giveProcessLocked(e)
	s.closed = append(s.closed, e)
	if len(s.closed) > s.opts.MaxClosed {
		oldest := max(0, slices.IndexFunc(s.closed, (*entry).delivered))
		s.forgetLocked(s.closed[oldest])
		s.closed = slices.Delete(s.closed, oldest, oldest+1)
	}
	if s.expiry == nil {
		s.expiry = time.AfterFunc(s.opts.ClosedTTL, s.expireClosed)
	}
}

// expireClosed forgets the processes that closed long enough ago and whose owner knows
// how they ended, unless a lease keeps their output to be read.
func (s *Session) expireClosed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expiry = nil
	if s.ended {
		return
	}
	next := s.opts.ClosedTTL
	kept := s.closed[:0]
	for _, e := range s.closed {
		left := time.Until(e.closedAt.Add(s.opts.ClosedTTL))
		if left <= 0 && s.keep == 0 && e.delivered() {
			s.forgetLocked(e)
			continue
		}
		kept = append(kept, e)
		if left > 0 {
			next = min(next, left)
		}
	}
	clear(s.closed[len(kept):])
	s.closed = kept
	if len(kept) > 0 {
		// One timer serves many processes that close together.
		s.expiry = time.AfterFunc(max(next, s.opts.ClosedTTL/32), s.expireClosed)
	}
}

// delivered reports whether the owner of a closed process knows how it ended.
func (e *entry) delivered() bool { return e.proc.Log.Acked().Seq == e.proc.Log.Last() }

// forgetLocked forgets a closed process. Its background processes still belong to the
// session.
func (s *Session) forgetLocked(e *entry) {
	delete(s.entries, e.id)
	s.outboxesLocked(func(o *Outbox) { o.forgetLocked(e) })
	s.dismissSlowLocked()
	e.proc.Release()
}
