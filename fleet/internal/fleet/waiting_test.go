//go:build unix

package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/fleet/internal/fleet"
	"execserver/fleet/natstransport"
	"execserver/internal/testkit"
	"execserver/transport"
)

// rawDial opens a connection of a client that says only what the test says.
func (s *site) rawDial(t testing.TB, path, token string) (transport.Conn, error) {
	t.Helper()
	opts := new(transport.DialOptions)
	if token != "" {
		opts.Header = http.Header{"Authorization": {"Bearer " + clientToken(token)}}
	}
	conn, err := transport.Dial(t.Context(), s.url+path, opts)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(transport.Reason{}) })
	}
	return conn, err
}

// silent is a machine that registers, and answers requests for connections when it is told to.
func (s *site) silent(t testing.TB, token, name string) (requests <-chan *nats.Msg) {
	t.Helper()
	nc, err := s.connect(t, token, name)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan *nats.Msg, 1<<12)
	if _, err := nc.Subscribe("exec.open."+name, func(m *nats.Msg) { asked <- m }); err != nil {
		t.Fatal(err)
	}
	register(t, nc, name, fmt.Sprintf(`{"name":%q,"instance":"i","load":{"capacity":1000}}`, name))
	return asked
}

// TestRevokedWhileWaiting takes the token of a client away while the gateway waits: for its
// first message, and for its machine. No connection comes about.
func TestRevokedWhileWaiting(t *testing.T) {
	bob := clientEntry("bob", `scope = ["full"]`)
	t.Run("greeting", func(t *testing.T) {
		s := newSite(t, everyName, bob+clientEntry("ann", `scope = ["full"]`), nil)
		m := s.join(t, "any", "box")
		s.listedFor(t, clientToken("bob"), 1)
		conn, err := s.rawDial(t, "/any", "ann")
		if err != nil {
			t.Fatal(err)
		}
		s.changeClients(t, bob)
		if err := conn.Write([]byte(`{"id":1,"method":"initialize","params":{"clientName":"late"}}`)); err != nil {
			t.Fatal(err)
		}
		if msg, err := conn.Read(nil); err == nil || !strings.Contains(err.Error(), "revoked") {
			t.Errorf("it got %q, %v", msg, err)
		}
		if n := m.server.Stats().SessionsAttached; n != 0 {
			t.Errorf("the machine has %d sessions", n)
		}
	})
	t.Run("machine", func(t *testing.T) {
		s := newSite(t, everyName, bob+clientEntry("ann", `scope = ["full"]`), nil)
		asked := s.silent(t, "any", "slow")
		s.listedFor(t, clientToken("bob"), 1)
		ended := make(chan error, 1)
		go func() {
			conn, err := s.rawDial(t, "/env/slow", "ann")
			if err == nil {
				_, err = conn.Read(nil)
			}
			ended <- err
		}()
		testkit.Within(t, "the end", func() {
			request := <-asked
			s.changeClients(t, bob)
			_ = request.Respond([]byte(`{"version":1,"instance":"i","window":1048576}`))
			if err := <-ended; err == nil || !strings.Contains(err.Error(), "revoked") {
				t.Errorf("the end: %v", err)
			}
		})
		if n := s.gateway.Counts().Relays; n != 0 {
			t.Errorf("the gateway has %d connections", n)
		}
	})
}

const stalledClients = 60

// stall connects many clients, which do not read what their machine sends.
func (s *site) stall(t *testing.T) {
	t.Helper()
	nc, err := s.connect(t, "any", "loud")
	if err != nil {
		t.Fatal(err)
	}
	var wrote atomic.Int64
	m, err := fleet.Join(t.Context(), nc, fleet.Member{Name: "loud"}, fleet.JoinOptions{
		Serve: func(c *natstransport.Conn) {
			msg := make([]byte, 256<<10)
			for c.Write(msg) == nil {
				wrote.Add(1)
			}
		},
		Load: func() fleet.Load { return fleet.Load{} }, Drain: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	for range stalledClients {
		if _, err := s.rawDial(t, "/env/loud", ""); err != nil {
			t.Fatal(err)
		}
	}
	still, last := 0, int64(0)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if now := wrote.Load(); now != last || now < stalledClients {
			still, last = 0, now
		} else if still++; still > 10 {
			return nil
		}
		return errors.New("the clients still get something")
	})
}

// TestManyStalledClients ends the connections of clients that do not read. Each takes a
// second, all together not a minute.
func TestManyStalledClients(t *testing.T) {
	for what, end := range map[string]func(*site){
		"revoked": func(s *site) { s.gateway.Recheck(nobody) },
		"closed":  func(s *site) { s.gateway.Close() },
	} {
		t.Run(what, func(t *testing.T) {
			s := newSite(t, everyName, "", nil)
			s.stall(t)
			start := time.Now()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				end(s)
			}()
			defer func() { <-ended }()
			testkit.WaitFor(t, testkit.Patience/2, func() error {
				if n := s.gateway.Counts().Relays; n != 0 {
					return fmt.Errorf("the gateway has %d connections", n)
				}
				return nil
			})
			t.Logf("%d connections ended in %v", stalledClients, time.Since(start))
		})
	}
}

// TestAnyPassesTheDead lists two machines beside a live one: one vanished, one does not answer.
// Clients of any machine get the live one.
func TestAnyPassesTheDead(t *testing.T) {
	var mu sync.Mutex
	giveUp := func() {}
	s := newSiteThatWaits(t, everyName, "", nil, fleet.Waits{Attempt: func(ctx context.Context) (context.Context, context.CancelFunc) {
		mu.Lock()
		defer mu.Unlock()
		ctx, giveUp = context.WithCancel(ctx)
		return ctx, giveUp
	}})
	dead := s.join(t, "any", "dead")
	live := s.join(t, "any", "live")
	asked := s.silent(t, "any", "silent")
	s.listed(t, "dead", "live", "silent")
	dead.nc.Close()
	over := make(chan struct{})
	defer close(over)
	go func() { // the time to wait for the silent one is over as soon as it was asked
		for {
			select {
			case <-asked:
				mu.Lock()
				giveUp()
				mu.Unlock()
			case <-over:
				return
			}
		}
	}()
	for i := range 6 {
		if _, err := dial(t, s.url+"/any", ""); err != nil {
			t.Fatal(err)
		}
		if n := live.server.Stats().SessionsAttached; n != i+1 {
			t.Fatalf("the live machine has %d sessions of %d", n, i+1)
		}
	}
}

// TestCrowdAtASilentMachine has one tenant send many clients to a machine that does not
// answer. Most are told so at once, and those of another tenant are served.
func TestCrowdAtASilentMachine(t *testing.T) {
	s := twoTenants(t)
	asked := s.silent(t, "red", "red-9")
	var busy, silent atomic.Int64
	var crowd sync.WaitGroup
	enough := func() bool { return busy.Load() >= 100 || t.Context().Err() != nil }
	for range 300 {
		crowd.Go(func() {
			for again := false; !again || !enough(); again = true { // the first ones may be through before the last come
				_, err := s.rawDial(t, "/env/red-9", "rita")
				switch {
				case err == nil:
					t.Error("a client was connected with a machine that says nothing")
				case strings.Contains(err.Error(), "too many clients wait"):
					busy.Add(1)
				case strings.Contains(err.Error(), "503"):
					silent.Add(1)
				case t.Context().Err() == nil:
					t.Error(err)
				}
			}
		})
	}
	t.Cleanup(crowd.Wait)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if busy.Load() < 100 {
			return fmt.Errorf("%d clients were told that too many wait, %d that the machine does not answer", busy.Load(), silent.Load())
		}
		return nil
	})
	for range 10 {
		if _, err := dial(t, s.url+"/env/blue-1", clientToken("bea")); err != nil {
			t.Errorf("another tenant: %v", err)
		}
	}
	gone := make(chan struct{})
	go func() { // those that still wait
		for {
			select {
			case request := <-asked:
				_ = request.Respond([]byte(`{"version":1,"refusal":"enough"}`))
			case <-gone:
				return
			}
		}
	}()
	testkit.Within(t, "the end of the crowd", crowd.Wait)
	close(gone)
	t.Logf("%d were told that too many wait, %d that the machine does not answer; it was asked %d times", busy.Load(), silent.Load(), len(asked))
}

// TestLargeGreeting has a client send a first message that no initialize is as large as.
func TestLargeGreeting(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	s.join(t, "any", "box")
	conn, err := s.rawDial(t, "/env/box", "")
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Write(make([]byte, 8<<20)) // it may end meanwhile
	testkit.Within(t, "the end", func() {
		if _, err := conn.Read(nil); err == nil {
			t.Error("it was answered")
		}
	})
	if n := s.gateway.Counts().ToMachines; n != 0 {
		t.Errorf("%d bytes went to the machine", n)
	}
}

// TestCrowdOfDrains has one tenant drain a machine that does not answer, many times at once.
// Most requests are refused at once, so that they take no place of other tenants.
func TestCrowdOfDrains(t *testing.T) {
	s := twoTenants(t)
	nc, err := s.connect(t, "red", "red-9")
	if err != nil {
		t.Fatal(err)
	}
	m, err := fleet.Join(t.Context(), nc, fleet.Member{Name: "red-9"}, fleet.JoinOptions{
		Serve: func(*natstransport.Conn) {}, Load: func() fleet.Load { return fleet.Load{} }, Drain: func() { <-t.Context().Done() },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	s.listedFor(t, clientToken("rita"), 3)
	var busy atomic.Int64
	var crowd sync.WaitGroup
	for range 200 {
		crowd.Go(func() {
			for again := false; !again || busy.Load() < 100; again = true { // the first ones may be through before the last come
				if _, text := s.ask(t, http.MethodPost, "/fleet/red-9/drain", clientToken("rita")); strings.Contains(text, "too many") {
					busy.Add(1)
				}
			}
		})
	}
	testkit.Within(t, "the end of the crowd", crowd.Wait)
}

// TestLateAnswers has machines say more before their first answer than a gateway looks at, and
// name a session of another one.
func TestLateAnswers(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	serve := func(name, session string, before int) {
		nc, err := s.connect(t, "any", name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := fleet.Join(t.Context(), nc, fleet.Member{Name: name, Labels: map[string]string{name: ""}}, fleet.JoinOptions{
			Serve: func(c *natstransport.Conn) {
				for range before {
					_ = c.Write([]byte(`{"method":"note","params":{}}`))
				}
				_ = c.Write(fmt.Appendf(nil, `{"id":1,"result":{"sessionId":%q}}`, session))
				_, _ = c.Read(nil)
				<-c.Done()
			},
			Load: func() fleet.Load { return fleet.Load{Capacity: 10} }, Drain: func() {},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
	}
	serve("early", "one", 3)
	serve("late", "two", 1000)
	serve("thief", "one", 0)
	s.listed(t, "early", "late", "thief")
	kv := s.bucket(t, "default", fleet.Placements)
	for _, row := range []struct {
		name  string
		notes int
		found string // where the session is afterwards
		err   string
	}{{"early", 3, "one at early", ""}, {"late", 1000, "", ""}, {"thief", 0, "one at early", "cannot record"}} {
		err := func() error {
			conn, err := s.rawDial(t, "/any?label="+row.name, "")
			if err != nil {
				return err
			}
			defer conn.Close(transport.Reason{})
			if err := conn.Write([]byte(`{"id":1,"method":"initialize","params":{"clientName":"test"}}`)); err != nil {
				return err
			}
			for range row.notes + 1 {
				if _, err = conn.Read(nil); err != nil {
					break
				}
			}
			if (err == nil) != (row.err == "") || err != nil && !strings.Contains(err.Error(), row.err) {
				return fmt.Errorf("it gets the error %w", err)
			}
			found := ""
			for _, session := range []string{"one", "two"} {
				if entry, err := kv.Get(t.Context(), session); err == nil && (row.name == "late") == (session == "two") {
					found = session + " at " + string(entry.Value())
				}
			}
			if found != row.found {
				return fmt.Errorf("afterwards %q is recorded, want %q", found, row.found)
			}
			return nil
		}()
		if err != nil {
			t.Errorf("a client of %s: %v", row.name, err)
		}
	}
}
