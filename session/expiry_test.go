//go:build unix

package session_test

import (
	"testing"
	"testing/synctest"
	"time"

	"execserver/process"
	"execserver/session"
)

// A session that was resumed at the last moment and lost again lives on for the
// whole time: the end that was due before is not its end.
func TestResumeAtTheLastMoment(t *testing.T) {
	ownership := process.DefaultOwnership() // its threads belong to no bubble
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Second
		sessions := newSessions(t, &session.Options{DetachedTTL: ttl, Ownership: ownership})
		resumed := 0
		for range 200 {
			s, r := create(t, sessions)
			sessions.Detach(s, r.out)
			time.Sleep(ttl)
			_, out, err := sessions.Resume(s.ID, newPeer(true))
			if err != nil {
				continue // it has ended first
			}
			resumed++
			sessions.Detach(s, out)
			time.Sleep(ttl / 2)
			if _, _, err := sessions.Resume(s.ID, newPeer(true)); err != nil {
				t.Fatalf("half of the time after a resume: %v", err)
			}
			sessions.End(s, "test")
		}
		t.Logf("%d of 200 resumes came first", resumed)
	})
}
