package server

import (
	"context"
	"time"
)

// AwaitIdle returns nil when the server has had no connection, session, stream and running process
// for a time, or the cause of ctx when that is done. Requests of HTTP that are not upgraded, such as
// probes, do not count. A client may connect while AwaitIdle returns; Drain then tells when it has
// left.
func (s *Server) AwaitIdle(ctx context.Context, idle time.Duration) error {
	ticker := time.NewTicker(min(max(idle/20, time.Millisecond), time.Second))
	defer ticker.Stop()
	since, opened := time.Now(), s.counters.opened.Load()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
		now := s.counters.opened.Load()
		switch {
		case now != opened || !s.idle():
			since, opened = time.Now(), now
		case time.Since(since) >= idle:
			return nil
		}
	}
}

// idle reports whether nobody uses the server.
func (s *Server) idle() bool {
	s.mu.Lock()
	conns := len(s.conns)
	s.mu.Unlock()
	stats := s.Stats()
	return conns == 0 && s.streams.Count() == 0 && stats.SessionsAttached+stats.SessionsDetached+stats.Running == 0
}
