//go:build unix

package session_test

import (
	"testing"

	"execserver/internal/session"
)

// A client controls only sessions that it could also own: those of its principal while
// nobody has changed its rights.
func TestControlled(t *testing.T) {
	sessions := newSessions(t, nil)
	p := newPeer(true)
	p.principal, p.rights = "ann", "all"
	s, _, err := sessions.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	revoked := session.Credentials{Principal: "ann", Rights: "all", Valid: func() bool { return false }}
	for _, test := range []struct {
		by   session.Credentials
		v    session.Viewer
		want string
	}{
		{session.Credentials{Principal: "ann", Rights: "few"}, session.Viewer{Principal: "ann"}, "belongs to other credentials"},
		{session.Credentials{Principal: "bob", Rights: "all"}, session.Viewer{Principal: "bob"}, "unknown session id"},
		{session.Credentials{Principal: "bob", Rights: "all"}, session.Viewer{Principal: "bob", Others: true}, "belongs to other credentials"},
		{revoked, session.Viewer{Principal: "ann"}, "revoked"},
	} {
		_, err := sessions.Controlled(s.ID, test.by, test.v)
		refused(t, err, test.want)
		_, _, err = sessions.EndControlled(s.ID, test.by, test.v)
		refused(t, err, test.want)
	}
	ann, v := session.Credentials{Principal: "ann", Rights: "all"}, session.Viewer{Principal: "ann"}
	if got, err := sessions.Controlled(s.ID, ann, v); got != s || err != nil {
		t.Errorf("its own client: %v, %v", got, err)
	}
	owner, answered, err := sessions.EndControlled(s.ID, ann, v)
	if owner != session.Peer(p) || err != nil {
		t.Fatalf("its end: %v, %v", owner, err)
	}
	defer answered()
	_, err = sessions.Controlled(s.ID, ann, v)
	refused(t, err, "unknown session id")
}

// A drain lets a client that has ended the last session learn that it did.
func TestDrainAnswersFirst(t *testing.T) {
	sessions := newSessions(t, nil)
	var ids []string
	for range 2 {
		s, _, err := sessions.Create(newPeer(true))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, s.ID)
	}
	drained := sessions.Drain()
	goesOn := func(until string) {
		t.Helper()
		select {
		case <-drained:
			t.Fatalf("the drain has finished before %s", until)
		default:
		}
	}
	for _, id := range ids {
		goesOn("the end of the last session")
		_, answered, err := sessions.EndControlled(id, session.Credentials{}, session.Viewer{})
		if err != nil {
			t.Fatal(err)
		}
		goesOn("the answer")
		answered()
	}
	<-drained
}
