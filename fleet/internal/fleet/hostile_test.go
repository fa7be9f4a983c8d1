//go:build unix

package fleet_test

import (
	"context"
	"encoding/json"
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

// TestBouncedAnswers has a machine name the subjects of others for the answers to its
// requests. Nothing arrives there.
func TestBouncedAnswers(t *testing.T) {
	s := twoTenants(t)
	intruder, err := s.connect(t, "red", "red-9")
	if err != nil {
		t.Fatal(err)
	}
	subjects := []string{
		"exec.open.red-1", "exec.in.red-1.i.d.1", "exec.control.red-1", "exec.out.red-1.d.1",
		"_INBOX.red-1.bounced", "_INBOX.red-9x.bounced", "exec.*.red-1", "$JS.API.STREAM.PURGE.KV_" + fleet.Bucket,
	}
	// The gateway sees all of the account.
	watcher := s.asGateway(t, "red")
	for _, subject := range subjects {
		if strings.Contains(subject, "*") {
			continue
		}
		if _, err := watcher.Subscribe(subject, func(m *nats.Msg) { t.Errorf("%s got %v %s", m.Subject, m.Header, m.Data) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := watcher.Flush(); err != nil {
		t.Fatal(err)
	}
	const own = `{"name":"red-9","instance":"i"}`
	for _, subject := range subjects {
		for _, text := range []string{`{"member":` + own + `}`, `{"member":{"name":"red-1","instance":"i"}}`, "drain"} {
			for _, header := range []nats.Header{nil, {"Nats-Trace-Dest": {subject}, "Nats-Trace-Only": {"true"}}} {
				for _, to := range []string{"exec.register.red-9", "exec.out.red-9.d.1", "exec.out.red-9.nobody"} {
					if err := intruder.PublishMsg(&nats.Msg{Subject: to, Reply: subject, Data: []byte(text), Header: header}); err != nil {
						t.Fatal(err)
					}
				}
				register(t, intruder, "red-9", own) // which is answered after the others
			}
		}
	}
	if err := watcher.Drain(); err != nil { // before others use the subjects
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !watcher.IsClosed() {
			return errors.New("the watcher has not seen everything")
		}
		return nil
	})
	for _, name := range []string{"red-1", "red-2"} {
		if _, err := dial(t, s.url+"/env/"+name, clientToken("rita")); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	}
}

// TestAnswersToGateways has a machine, which may take any name, take that of the inbox of a
// gateway. It sees nothing of what goes there.
func TestAnswersToGateways(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	inbox := make(chan string, 16)
	first, err := s.connect(t, "any", "first")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Subscribe("exec.open.first", func(m *nats.Msg) {
		select {
		case inbox <- m.Reply:
		default:
		}
	}); err != nil {
		t.Fatal(err)
	}
	register(t, first, "first", `{"name":"first","instance":"i"}`)
	s.listed(t, "first")
	go func() { _, _ = transport.Dial(t.Context(), s.url+"/env/first", nil) }()
	tokens := strings.Split(<-inbox, ".")
	name := tokens[1]
	nc, err := s.connect(t, "any", name)
	if err != nil {
		t.Fatal(err)
	}
	sub, err := nc.SubscribeSync(strings.Join(tokens[:2], ".") + ".>")
	if err != nil {
		return // refused
	}
	s.join(t, "any", "victim")
	mustDial(t, s.url+"/env/victim")
	if m, err := sub.NextMsg(100 * time.Millisecond); err == nil {
		t.Errorf("it got %s", m.Data)
	}
}

// TestTwoClaimants lets a machine take the name of another one that is alive, because the
// entry of that was removed. One of them loses it, and at no time do both get what a client
// sends.
func TestTwoClaimants(t *testing.T) {
	// Nobody answers a request for the machine that has the name and does not listen yet.
	s := newSiteThatWaits(t, everyName, "", nil, fleet.Waits{Attempt: func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, 50*time.Millisecond)
	}})
	var mu sync.Mutex
	got := [2]map[string]bool{make(map[string]bool), make(map[string]bool)}
	join := func(which int) *fleet.Membership {
		nc, err := s.connect(t, "any", "box")
		if err != nil {
			t.Fatal(err)
		}
		for {
			m, err := fleet.Join(t.Context(), nc, fleet.Member{Name: "box"}, fleet.JoinOptions{
				Heartbeat: time.Second,
				Serve: func(c *natstransport.Conn) {
					for {
						msg, err := c.Read(nil)
						if err != nil {
							return
						}
						mu.Lock()
						got[which][string(msg)] = true
						mu.Unlock()
						_ = c.Write(msg)
					}
				},
				Load: func() fleet.Load { return fleet.Load{} }, Drain: func() {},
			})
			if err == nil {
				t.Cleanup(m.Close)
				return m
			}
			if t.Context().Err() != nil {
				return nil
			}
		}
	}
	first := join(0)
	s.listed(t, "box")
	joined := make(chan *fleet.Membership, 1)
	go func() { joined <- join(1) }()
	var stop atomic.Bool
	sent := make(chan int)
	for client := range 4 {
		go func() {
			n := 0
			for ; !stop.Load(); n++ {
				c, err := transport.Dial(t.Context(), s.url+"/env/box", nil)
				if err != nil {
					continue
				}
				if c.Write(fmt.Appendf(nil, "%d of %d", n, client)) == nil {
					_, _ = c.Read(nil)
				}
				_ = c.Close(transport.Reason{})
			}
			sent <- n
		}()
	}
	var second *fleet.Membership
	testkit.Within(t, "the second machine", func() {
		for second == nil {
			s.ask(t, http.MethodDelete, "/fleet/box", "")
			select {
			case second = <-joined:
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	// The last removal may have met the entry of the second one, and the first one has made its
	// own again.
	testkit.WaitFor(t, testkit.Patience, func() error {
		if first.HasName() == second.HasName() {
			return errors.New("both machines have the name, or none has")
		}
		return nil
	})
	stop.Store(true)
	total := 0
	for range 4 {
		total += <-sent
	}
	mu.Lock()
	defer mu.Unlock()
	t.Logf("of %d messages the first machine got %d and the second %d", total, len(got[0]), len(got[1]))
	for msg := range got[1] {
		if got[0][msg] {
			t.Errorf("both machines got %q", msg)
		}
	}
}

// TestBadEntries has machines say what a gateway does not show.
func TestBadEntries(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	nc, err := s.connect(t, "any", "box")
	if err != nil {
		t.Fatal(err)
	}
	var labels, long []string
	for i := range 65 {
		labels = append(labels, fmt.Sprintf(`"l%d":""`, i))
		long = append(long, fmt.Sprintf(`"l%d":%q`, i, strings.Repeat("x", 256)))
	}
	for _, row := range []struct{ rest, want string }{
		{`"host":"\u001b]0;owned\u0007"`, "host"},
		{`"version":"1\n2"`, "version"},
		{`"system":"\u202e"`, "system"},
		{`"sandbox":"` + strings.Repeat("x", 257) + `"`, "sandbox"},
		{`"labels":{` + strings.Join(labels, ",") + `}`, "65 labels"},
		{`"labels":{` + strings.Join(long, ",") + `}`, "limit"},
		{`"labels":{"a.b":""}`, "label"},
		{`"labels":{"a":"\u001b[2J"}`, "label"},
		{`"name":"other"`, "name"},
		{`"instance":"a.>"`, "instance"},
		{`"joined":"yesterday"`, "not understood"},
		{`"host":"` + strings.Repeat("x", 900<<10) + `"`, "limit"},
	} {
		if answer := register(t, nc, "box", `{"name":"box","instance":"i",`+row.rest+`}`); answer.Revision != 0 || !strings.Contains(answer.Invalid, row.want) {
			t.Errorf("%.100s: %+v, want %q", row.rest, answer, row.want)
		}
	}
	s.listed(t)
	register(t, nc, "box", `{"name":"box","instance":"i","load":{"sessions":-1000000000,"processes":-1,"capacity":1000000000}}`)
	s.listed(t, "box")
	_, text := s.ask(t, http.MethodGet, "/fleet", "")
	var machines []fleet.Member
	if err := json.Unmarshal([]byte(text), &machines); err != nil || machines[0].Load != (fleet.Load{Capacity: 1_000_000}) {
		t.Errorf("%v %s", err, text)
	}
}

// TestRegisterFlood has a machine ask a gateway without end. Others join and stay.
func TestRegisterFlood(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	first := s.join(t, "any", "first")
	env := mustDial(t, s.url+"/env/first")
	var stop atomic.Bool
	ended := make(chan struct{})
	flood, err := s.connect(t, "any", "red")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := flood.Subscribe("_INBOX.red.>", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(ended)
		large := append([]byte(`{"member":{"name":"red","instance":"i","host":"`), strings.Repeat("x", 100<<10)...)
		for i := 0; !stop.Load(); i++ {
			text := []byte(`{"member":{"name":"red","instance":"i"}}`)
			if i%8 == 0 {
				text = large
			}
			_ = flood.PublishRequest("exec.register.red", "_INBOX.red.x", text)
		}
	}()
	defer func() {
		stop.Store(true)
		<-ended
	}()
	for i := range 10 {
		m := s.join(t, "any", fmt.Sprint("other-", i))
		if out, err := env.Command(t.Context(), "echo", "yes").Output(); err != nil || string(out) != "yes\n" {
			t.Fatalf("%q, %v", out, err)
		}
		m.Close()
	}
	if !first.HasName() {
		t.Error("the first machine has lost its name")
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if got := strings.Join(s.list(t, ""), " "); !strings.Contains(got, "first") {
			return fmt.Errorf("the gateway lists %q", got)
		}
		return nil
	})
}
