//go:build unix

package session_test

import (
	"fmt"
	"testing"

	"execserver/internal/process"
	"execserver/internal/session"
	"execserver/internal/testkit"
)

// sessionOf creates a session of a principal.
func sessionOf(t *testing.T, sessions *session.Sessions, principal string) *session.Session {
	t.Helper()
	p := newPeer(true)
	p.principal = principal
	s, _, err := sessions.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What one principal has in all of its sessions leaves something to others, and it gets
// more when it has less.
func TestQuotasOfSessions(t *testing.T) {
	const limit, most = 8, 4
	sleeper := process.Spec{Argv: []string{"/bin/sleep", "100"}, Dir: "/"}
	dir := t.TempDir()
	for name, kind := range map[string]struct {
		take  func(s *session.Session, id string) error
		give  func(s *session.Session, id string)
		text  string
		fails func(s *session.Session) error // what fails, and takes nothing
	}{
		"processes": {
			take: func(s *session.Session, id string) error {
				err := s.Start(t.Context(), id, "", sleeper)
				s.Announce(id)
				return err
			},
			give: func(s *session.Session, id string) { s.Terminate(id) },
			text: "process more refused: the server has 4 live processes of this principal, the limit is 4",
			fails: func(s *session.Session) error {
				return s.Start(t.Context(), "bad", "", process.Spec{Argv: []string{"/nowhere"}, Dir: "/"})
			},
		},
		"watches": {
			take: func(s *session.Session, id string) error {
				_, _, err := s.Watch(t.Context(), id, dir, nil)
				return err
			},
			give: func(s *session.Session, id string) { s.Unwatch(id) },
			text: "watch `more` refused: the server has 4 watches of this principal, the limit is 4",
			fails: func(s *session.Session) error {
				_, _, err := s.Watch(t.Context(), "bad", dir+"/nowhere", nil)
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			sessions := newSessions(t, &session.Options{AllProcesses: limit, AllWatches: limit})
			of := []*session.Session{sessionOf(t, sessions, "greedy"), sessionOf(t, sessions, "greedy")}
			for range limit {
				if kind.fails(of[0]) == nil {
					t.Fatal("it has not failed")
				}
			}
			for i := range most {
				if err := kind.take(of[i%2], fmt.Sprint(i)); err != nil {
					t.Fatal(err)
				}
			}
			more := func() error { return kind.take(of[0], "more") }
			refused(t, more(), kind.text)
			other := sessionOf(t, sessions, "modest")
			for i := range limit - most {
				if err := kind.take(other, fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			}
			sessions.End(other, "test")
			kind.give(of[1], "1")
			testkit.WaitFor(t, testkit.Patience, more)
			refused(t, kind.take(of[0], "more yet"), "of this principal")
			sessions.End(of[0], "test")
			sessions.End(of[1], "test")
			sessions.Wait()
			again := sessionOf(t, sessions, "greedy")
			for i := range most {
				if err := kind.take(again, fmt.Sprint(i)); err != nil {
					t.Errorf("after the end of everything: %v", err)
				}
			}
		})
	}
}
