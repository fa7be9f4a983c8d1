//go:build unix

package session_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"execserver/internal/quota"
	"execserver/internal/session"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// tangle does what clients of a principal may do, in an order that nobody foresaw, with
// sessions that others use at the same time. It returns the sessions that it has created.
func tangle(sessions *session.Sessions, random *rand.Rand, known *sync.Map, principal string) (created []*session.Session) {
	type place struct {
		s    *session.Session
		out  *session.Outbox
		peer *peer
	}
	var mine []place
	leave := func(i int, how session.Departure) {
		sessions.Leave(mine[i].s, mine[i].out, how)
		mine = append(mine[:i], mine[i+1:]...)
	}
	some := func() (id string) {
		known.Range(func(k, s any) bool {
			if s.(*session.Session).Principal == principal || random.IntN(8) == 0 {
				id = k.(string)
			}
			return id == "" || random.IntN(4) > 0
		})
		return id
	}
	for range 300 {
		p := newPeer(random.IntN(2) == 0)
		p.principal = principal
		got := place{peer: p}
		var err error
		action := random.IntN(16)
		switch {
		case action == 0:
			if got.s, got.out, err = sessions.Create(p); err != nil {
				continue
			}
			created = append(created, got.s)
			if random.IntN(4) == 0 {
				sessions.EndAfter(got.s, time.Duration(random.IntN(3))*time.Millisecond)
			}
		case action < 4:
			id := some()
			if got.s, got.out, err = sessions.Resume(id, p); code(err) == protocol.CodeInvalidRequest {
				known.Delete(id) // probably it has ended
			}
		case action < 7:
			got.s, got.out, err = sessions.Observe(some(), p, random.IntN(2) == 0)
		case len(mine) == 0:
			continue
		default:
			i := random.IntN(len(mine))
			switch action {
			case 7, 8, 9:
				_ = sessions.TakeOver(mine[i].out)
			case 10, 11:
				name := fmt.Sprint("name", random.IntN(3))
				_, _ = sessions.Keep(mine[i].out, leaseOf(&name, time.Duration(random.IntN(3))*time.Hour))
			case 12, 13:
				leave(i, session.Departure(random.IntN(int(session.Final)+1)))
			case 14:
				sessions.End(mine[i].s, "test")
				known.Delete(mine[i].s.ID)
			default:
				mine[i].peer.revoked.Store(true)
				sessions.EndRevoked("test")
			}
			continue
		}
		if err == nil {
			mine = append(mine, got)
			known.Store(got.s.ID, got.s)
		}
	}
	for len(mine) > 0 {
		leave(0, session.Lost)
	}
	return created
}

// Whatever clients do with sessions at the same time, what is counted comes back.
func TestCountsComeBack(t *testing.T) {
	const limit = 16
	sessions := newSessions(t, &session.Options{MaxSessions: limit, MaxObservers: 3})
	var known sync.Map // of *session.Session by id
	var wg sync.WaitGroup
	var mu sync.Mutex
	var created []*session.Session
	for i := range uint64(6) {
		wg.Go(func() {
			mine := tangle(sessions, rand.New(rand.NewPCG(i, 1)), &known, fmt.Sprint("principal", i%2))
			mu.Lock()
			defer mu.Unlock()
			created = append(created, mine...)
		})
	}
	testkit.Within(t, "the clients", wg.Wait)
	for _, s := range created {
		sessions.End(s, "test")
	}
	for i := range limit {
		p := newPeer(true)
		p.principal = quota.None
		_, out, err := sessions.Create(p)
		if err != nil {
			t.Fatalf("session %d of %d: %v", i, limit, err)
		}
		if i < limit/2 {
			if _, err := sessions.Keep(out, leaseOf(nil, time.Hour)); err != nil {
				t.Fatalf("lease %d of %d: %v", i, limit/2, err)
			}
		}
	}
}
