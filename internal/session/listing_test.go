//go:build unix

package session_test

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/process"
	"execserver/internal/session"
	"execserver/protocol"
)

// enough reserves room for any list.
func enough(int) error { return nil }

func list(t *testing.T, sessions *session.Sessions, v session.Viewer) []protocol.ListedSession {
	t.Helper()
	result, err := sessions.List(v, enough)
	if err != nil || result.Truncated {
		t.Fatal(result.Truncated, err)
	}
	return result.Sessions
}

// A list has the sessions that its reader may observe, in the order in which they were
// created, and says whose others are.
func TestListedSessions(t *testing.T) {
	sessions := newSessions(t, nil)
	principals := []string{"ann", "bob", "ann", ""}
	var ids []string
	for _, principal := range principals {
		p := newPeer(true)
		p.principal = principal
		s, _, err := sessions.Create(p)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, s.ID)
	}
	for _, test := range []struct {
		viewer session.Viewer
		want   []int
	}{
		{session.Viewer{Principal: "ann"}, []int{0, 2}},
		{session.Viewer{Principal: "bob"}, []int{1}},
		{session.Viewer{Principal: ""}, []int{3}},
		{session.Viewer{Principal: "carl"}, nil},
		{session.Viewer{Principal: "ann", Others: true}, []int{0, 1, 2, 3}},
		{session.Viewer{Principal: "carl", Others: true}, []int{0, 1, 2, 3}},
	} {
		var want, got []string
		for _, i := range test.want {
			want = append(want, ids[i])
		}
		for _, s := range list(t, sessions, test.viewer) {
			got = append(got, s.SessionID)
			of := principals[slices.Index(ids, s.SessionID)]
			if s.Own != (of == test.viewer.Principal) || !s.Own && s.Principal != of || s.Own && s.Principal != "" {
				t.Errorf("%+v sees %+v of %q", test.viewer, s, of)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v sees %q, want %q", test.viewer, got, want)
		}
	}
}

// A list says when a session without a connection ends.
func TestListedEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sessions := newSessions(t, &session.Options{DetachedTTL: time.Minute, SilentTTL: time.Hour})
		var want []int64
		for _, test := range []struct {
			life, lease time.Duration
			how         session.Departure
			ends        time.Duration
		}{
			{0, 0, session.Lost, time.Minute},
			{0, 0, session.Silent, time.Hour},
			{0, 8 * time.Hour, session.Lost, 8 * time.Hour},
			{20 * time.Second, 0, session.Lost, 20 * time.Second},
			{20 * time.Hour, 0, session.Lost, time.Minute},
		} {
			s, r := create(t, sessions)
			if test.life > 0 {
				sessions.EndAfter(s, test.life)
			}
			keep(t, sessions, r.out, test.lease, test.lease)
			if _, _, err := sessions.Observe(s.ID, newPeer(true), false); err != nil {
				t.Fatal(err)
			}
			now := list(t, sessions, session.Viewer{})
			if last := now[len(now)-1]; last.State != protocol.SessionAttached || last.EndsAtMs != 0 {
				t.Errorf("before its end: %+v", last)
			}
			sessions.Leave(s, r.out, test.how)
			want = append(want, time.Now().Add(test.ends).UnixMilli())
			time.Sleep(time.Millisecond) // so that the next one is newer
		}
		for i, s := range list(t, sessions, session.Viewer{}) {
			if s.State != protocol.SessionDetached || s.EndsAtMs != want[i] || s.Observers != 1 || s.ClientName != "test" {
				t.Errorf("session %d ends %d: %+v", i, want[i], s)
			}
		}
	})
}

// A list with too many sessions has the oldest, and says that there are more.
func TestLongListOfSessions(t *testing.T) {
	sessions := newSessions(t, nil)
	first, _ := create(t, sessions)
	create(t, sessions)
	for most, truncated := range []bool{1: true, 2: false} {
		result, err := session.ListSome(sessions, session.Viewer{}, most, enough)
		if n := len(result.Sessions); err != nil || n != most || most > 0 && (result.Truncated != truncated || result.Sessions[0].SessionID != first.ID) {
			t.Errorf("at most %d: %+v, %v", most, result, err)
		}
	}
}

// A list of processes has whole sessions, as many as its reader accepts.
func TestLongListOfProcesses(t *testing.T) {
	sessions := newSessions(t, nil)
	const each = 100
	spec := process.Spec{Argv: append([]string{"/bin/true"}, make([]string, 1010)...), Dir: "/"}
	for n := range 3 {
		s, _ := create(t, sessions)
		for i := range each {
			if err := s.Start(t.Context(), string(rune('a'+i)), "", spec); err != nil {
				t.Fatal(err)
			}
		}
		result, err := sessions.ListProcesses(session.Viewer{}, enough)
		if want := min(n+1, 2) * each; err != nil || len(result.Processes) != want || result.Truncated != (n == 2) {
			t.Errorf("%d sessions: %d processes, want %d, truncated is %t, %v", n+1, len(result.Processes), want, result.Truncated, err)
		}
		if first := result.Processes[0]; first.SessionID == "" || first.ProcessID != "a" {
			t.Errorf("the first: %+v", first)
		}
	}
}

// Many lists that wait for room keep nothing of what they will have.
func TestListsWaitWithNothing(t *testing.T) {
	const count, waiting = 200, 50
	sessions := newSessions(t, nil)
	for range count {
		create(t, sessions)
	}
	full := errors.New("full")
	for name, list := range map[string]func(reserve func(int) error) error{
		"session/list": func(reserve func(int) error) error {
			_, err := sessions.List(session.Viewer{}, reserve)
			return err
		},
		"process/list": func(reserve func(int) error) error {
			_, err := sessions.ListProcesses(session.Viewer{}, reserve)
			return err
		},
	} {
		before := heap()
		room := make(chan struct{})
		var arrived, done sync.WaitGroup
		arrived.Add(waiting)
		for range waiting {
			done.Go(func() {
				err := list(func(int) error {
					arrived.Done()
					<-room
					return full
				})
				if err != full {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		arrived.Wait()
		// What the runtime needs for so many goroutines, and what other tests still let go of, is
		// some 100 KiB. The lists would be more than a mebibyte.
		if grown := heap() - before; grown > 400<<10 {
			t.Errorf("%d lists of %s that wait keep %d bytes", waiting, name, grown)
		}
		close(room)
		done.Wait()
	}
}

// heap returns the bytes that are in use.
func heap() int64 {
	runtime.GC() // which leaves what quotas have, such as the buffers in which directories are read
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A list waits for room, and fails if there will be none.
func TestListWithoutRoom(t *testing.T) {
	sessions := newSessions(t, nil)
	create(t, sessions)
	full := errors.New("full")
	none := func(int) error { return full }
	if _, err := sessions.List(session.Viewer{}, none); err != full {
		t.Errorf("session/list: %v", err)
	}
	if _, err := sessions.ListProcesses(session.Viewer{}, none); err != full {
		t.Errorf("process/list: %v", err)
	}
}
