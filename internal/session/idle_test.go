//go:build unix

package session_test

import (
	"testing"

	"execserver/internal/session"
	"execserver/protocol"
)

// A client that reads to the end of its processes and then vanishes leaves a session
// that makes room, although it says nothing itself of what it has.
func TestVanishedClientsMakeRoom(t *testing.T) {
	sessions := newSessions(t, &session.Options{MaxSessions: 1})
	for range 3 {
		s, r := create(t, sessions)
		r.ack = false
		startChild(t, s, "a", "echo", "hello")
		r.until(protocol.NotificationClosed)
		if r.peer.forget() == 0 {
			t.Fatal("the client is not asked whether it knows of the end")
		}
		r.acknowledge() // its transport answers
		sessions.Leave(s, r.out, session.Lost)
	}
}
