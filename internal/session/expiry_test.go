//go:build unix

package session_test

import (
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/session"
)

// A session that was resumed at the last moment and lost again lives on for the
// whole time: the end that was due before is not its end.
func TestResumeAtTheLastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Second
		sessions := newSessions(t, &session.Options{DetachedTTL: ttl})
		resumed := 0
		for range 200 {
			s, r := create(t, sessions)
			sessions.Leave(s, r.out, session.Lost)
			time.Sleep(ttl)
			_, out, err := sessions.Resume(s.ID, newPeer(true))
			if err != nil {
				continue // it has ended first
			}
			resumed++
			sessions.Leave(s, out, session.Lost)
			time.Sleep(ttl / 2)
			if _, _, err := sessions.Resume(s.ID, newPeer(true)); err != nil {
				t.Fatalf("half of the time after a resume: %v", err)
			}
			sessions.End(s, "test")
		}
		t.Logf("%d of 200 resumes came first", resumed)
	})
}
