//go:build unix

package fleet_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/client"
	"execserver/fleet/internal/broker"
	"execserver/fleet/internal/fleet"
	"execserver/fleet/natstransport"
	"execserver/internal/testkit"
)

// clock is a clock that a test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Now()} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// claim is a request of a machine about its name, and what a gateway answers.
type claim struct {
	after    time.Duration // that has passed since the one before
	instance string
	sessions int
	rest     string // of its load
	replaces string
	joined   string
	renewal  string
	stale    bool // it does not know the last revision
	leave    bool
	want     string // granted, waits, or the instance whose host has the name
}

// claimant sends the requests of machines that want one name.
type claimant struct {
	t        *testing.T
	s        *site
	nc       *nats.Conn
	name     string
	revision map[string]uint64 // by instance; 0 for one without the name
}

func (s *site) claimant(t *testing.T, name string) *claimant {
	t.Helper()
	nc, err := s.connect(t, "any", name)
	if err != nil {
		t.Fatal(err)
	}
	return &claimant{t, s, nc, name, make(map[string]uint64)}
}

// asks sends a request, until a gateway has looked at it.
func (c *claimant) asks(one claim) (answer string) {
	c.t.Helper()
	if one.joined == "" {
		one.joined = "2026-01-02T03:04:05Z"
	}
	revision := c.revision[one.instance]
	if one.stale {
		revision--
	}
	text := fmt.Sprintf(`{"member":{"name":%q,"instance":%q,"host":"host-of-%[2]s","joined":%q,"renewal":%q,"load":{"sessions":%d%s}},"revision":%d,"replaces":%q,"leave":%t}`,
		c.name, one.instance, one.joined, one.renewal, one.sessions, one.rest, revision, one.replaces, one.leave)
	var got struct {
		Revision uint64
		Owner    *fleet.Member
		Error    string
	}
	testkit.WaitFor(c.t, testkit.Patience, func() error {
		m, err := c.nc.Request("exec.register."+c.name, []byte(text), 100*time.Millisecond) // a gateway does not answer one that comes too soon
		if err != nil {
			return err
		}
		got.Revision, got.Owner, got.Error = 0, nil, ""
		if err := json.Unmarshal(m.Data, &got); err != nil {
			c.t.Fatal(err)
		}
		// A machine asks again after these, of which the last is storage that does not answer yet.
		for _, early := range []string{"try again", "does not have the list", nats.ErrNoResponders.Error()} {
			if strings.Contains(got.Error, early) {
				return errors.New(got.Error)
			}
		}
		return nil
	})
	switch {
	case strings.Contains(got.Error, "new and empty"):
		return "waits"
	case got.Error != "":
		return got.Error
	case got.Owner != nil:
		return strings.TrimPrefix(got.Owner.Host, "host-of-")
	}
	c.revision[one.instance] = got.Revision
	c.known(got.Revision)
	return "granted"
}

// known waits until the gateway has noted a lease at the time of its clock.
func (c *claimant) known(revision uint64) {
	c.t.Helper()
	testkit.WaitFor(c.t, testkit.Patience, func() error {
		if now := c.s.registries["default"].Revision(c.name); now < revision {
			return fmt.Errorf("the gateway knows the revision %d, not %d", now, revision)
		}
		return nil
	})
}

// TestWhoHasAName has machines want one name. The one with sessions has it, also while nothing
// is heard of it.
func TestWhoHasAName(t *testing.T) {
	t.Parallel()
	const (
		short = fleet.Lifetime - time.Second
		rest  = time.Second
	)
	now := newClock()
	s := newSiteThatWaits(t, everyName, "", nil, fleet.Waits{Lifetime: fleet.Lifetime, Now: now.Now})
	for i, row := range []struct {
		what   string
		claims []claim
	}{
		{"a silent machine with sessions", []claim{
			{instance: "first", sessions: 2, want: "granted"},
			{instance: "second", want: "first"},
			{after: short, instance: "second", want: "first"},
			{after: rest, instance: "second", want: "first"},
			{after: 20 * time.Minute, instance: "second", want: "first"},
			{instance: "first", sessions: 2, want: "granted"},
			{after: 20 * time.Minute, instance: "second", want: "first"},
		}},
		{"a silent machine without sessions", []claim{
			{instance: "first", want: "granted"},
			{after: short, instance: "second", want: "first"},
			{after: rest, instance: "second", want: "granted"},
			{instance: "first", want: "second"},
			{after: short, instance: "second", want: "granted"},
			{after: short, instance: "first", want: "second"},
		}},
		{"a silent machine whose sessions have ended", []claim{
			{instance: "first", sessions: 1, want: "granted"},
			{instance: "first", want: "granted"},
			{after: fleet.Lifetime, instance: "second", want: "granted"},
		}},
		{"a connection that may have begun a session", []claim{
			{instance: "first", rest: `,"connections":1`, want: "granted"},
			{after: fleet.Lifetime, instance: "second", want: "first"},
		}},
		{"the other one has no sessions when the first comes back", []claim{
			{instance: "first", sessions: 1, want: "granted"},
			{after: fleet.SessionsHold, instance: "second", want: "granted"},
			{instance: "first", sessions: 1, want: "granted"},
			{instance: "second", want: "first"},
		}},
		{"the other one has sessions when the first comes back", []claim{
			{instance: "first", sessions: 1, want: "granted"},
			{after: fleet.SessionsHold, instance: "second", want: "granted"},
			{instance: "second", sessions: 1, want: "granted"},
			{instance: "first", sessions: 1, want: "second"},
			{instance: "second", leave: true, want: "granted"},
			{instance: "first", sessions: 1, want: "granted"},
		}},
		{"a successor on the same host", []claim{
			{instance: "first", sessions: 1, want: "granted"},
			{after: short, instance: "next", replaces: "first", want: "first"},
			{after: rest, instance: "clone", replaces: "older", want: "first"},
			{instance: "next", replaces: "first", want: "granted"},
			{instance: "first", sessions: 0, want: "next"},
		}},
		{"a machine whose last answer was lost", []claim{
			{instance: "first", renewal: "a", want: "granted"},
			{instance: "first", renewal: "b", want: "granted"},
			{instance: "first", renewal: "b", stale: true, want: "granted"},
		}},
		{"a machine that was resumed twice from one snapshot", []claim{
			{instance: "first", renewal: "a", sessions: 1, want: "granted"},
			{instance: "first", renewal: "b", sessions: 1, want: "granted"},
			{instance: "first", renewal: "twin", sessions: 1, stale: true, want: "first"},
			{instance: "first", renewal: "c", sessions: 1, want: "granted"},
		}},
		{"machines with other clocks", []claim{
			{instance: "first", sessions: 1, joined: "1970-01-01T00:00:00Z", want: "granted"},
			{after: fleet.Lifetime, instance: "second", joined: "2100-01-01T00:00:00Z", want: "first"},
			{instance: "third", joined: "1900-01-01T00:00:00Z", want: "first"},
		}},
	} {
		c := s.claimant(t, fmt.Sprint("box-", i))
		for j, one := range row.claims {
			now.advance(one.after)
			if got := c.asks(one); got != one.want {
				t.Errorf("%s, request %d, of %s: %s, want %s", row.what, j+1, one.instance, got, one.want)
			}
		}
	}
}

// TestNamesAfterALoss has the storage of a gateway be lost. Nobody gets a name before the
// machines that may have had one had the time to claim it again.
func TestNamesAfterALoss(t *testing.T) {
	t.Parallel()
	now := newClock()
	s := newSiteThatWaits(t, everyName, "", nil, fleet.Waits{Lifetime: fleet.Lifetime, Fresh: fleet.Lifetime, Now: now.Now})
	const short = fleet.Lifetime - time.Second
	c := make([]*claimant, 4)
	for i := range c {
		c[i] = s.claimant(t, fmt.Sprint("box-", i))
		c[i].revision["first"] = 1000 // in the storage that was lost
		c[i].revision["other"] = 1000
	}
	step := func(i int, one claim) {
		t.Helper()
		if got := c[i].asks(one); got != one.want {
			t.Errorf("box-%d, a request of %s: %s, want %s", i, one.instance, got, one.want)
		}
	}
	step(0, claim{instance: "second", want: "waits"})
	step(0, claim{instance: "first", sessions: 1, want: "waits"}) // it has sessions
	step(0, claim{instance: "second", want: "first"})
	step(1, claim{instance: "second", want: "waits"})
	step(1, claim{instance: "first", want: "waits"}) // it had the name
	step(1, claim{instance: "second", want: "first"})
	step(2, claim{instance: "first", want: "waits"})
	step(2, claim{instance: "other", sessions: 1, want: "waits"})
	step(3, claim{instance: "second", want: "waits"}) // nobody else comes
	s.listed(t, "box-0", "box-1", "box-2")
	now.advance(short)
	step(0, claim{instance: "first", sessions: 1, want: "waits"})
	step(1, claim{instance: "first", want: "waits"})
	step(2, claim{instance: "first", want: "other"})
	step(3, claim{instance: "second", want: "waits"})
	now.advance(time.Second)
	step(0, claim{instance: "second", want: "first"})
	step(0, claim{instance: "first", sessions: 1, want: "granted"})
	step(1, claim{instance: "first", want: "granted"})
	step(2, claim{instance: "other", sessions: 1, want: "granted"})
	step(3, claim{instance: "second", want: "granted"})
	step(3, claim{instance: "third", want: "second"})
}

// restart starts the gateway again, with or without what it has stored.
func (s *site) restart(t *testing.T, opts broker.Options, timeouts fleet.Waits) {
	t.Helper()
	s.registries["default"].Close()
	s.broker.Close()
	var err error
	if s.broker, err = broker.New(opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.broker.Close)
	timeouts.Patience = testkit.Patience
	registry, err := fleet.NewRegistryWithTimeouts(s.asGateway(t, "default"), 1, testLog(t), nil, timeouts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(registry.Close)
	s.registries["default"] = registry
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !registry.Knows() {
			return errors.New("the gateway does not know its machines")
		}
		return nil
	})
}

// TestNamesAfterARestart starts the gateway again beside a machine that wants the name of
// another one, which is cut off meanwhile.
func TestNamesAfterARestart(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what     string
		lost     bool
		sessions int
		second   []string // what it is answered: at once, after a Lifetime, and when the first is back
		first    string
	}{
		{"the same storage, sessions", false, 1, []string{"first", "first", "first"}, "granted"},
		{"the same storage, none", false, 0, []string{"first", "granted", "granted"}, "second"},
		{"lost storage, sessions", true, 1, []string{"waits", "granted", "first"}, "granted"},
		{"lost storage, none", true, 0, []string{"waits", "granted", "granted"}, "second"},
	} {
		t.Run(row.what, func(t *testing.T) {
			t.Parallel()
			now := newClock()
			timeouts := fleet.Waits{Lifetime: fleet.Lifetime, Now: now.Now}
			var opts broker.Options
			s := newSiteThatWaits(t, everyName, "", func(o *broker.Options) {
				o.Listen = []string{"nats://" + testkit.FreeAddress(t)}
				opts = *o
			}, timeouts)
			if got := s.claimant(t, "box").asks(claim{instance: "first", sessions: row.sessions}); got != "granted" {
				t.Fatal(got)
			}
			if row.lost {
				opts.Data = t.TempDir()
			}
			timeouts.Fresh = fleet.Lifetime
			now.advance(time.Hour) // the gateway is down for long
			s.restart(t, opts, timeouts)
			c := s.claimant(t, "box")
			c.revision["first"] = 1
			for i, want := range row.second {
				if i == 2 {
					if got := c.asks(claim{instance: "first", sessions: row.sessions}); got != row.first {
						t.Errorf("the first machine: %s, want %s", got, row.first)
					}
				}
				if got := c.asks(claim{instance: "second"}); got != want {
					t.Errorf("the second machine, request %d: %s, want %s", i+1, got, want)
				}
				if i == 0 {
					now.advance(fleet.Lifetime)
				}
			}
		})
	}
}

// TestTwoGatewaysWithOtherClocks has two gateways whose clocks differ by days. A machine with
// sessions that asks the one and the other keeps its name at both.
func TestTwoGatewaysWithOtherClocks(t *testing.T) {
	t.Parallel()
	clocks := []*clock{newClock(), newClock()}
	clocks[1].advance(72 * time.Hour)
	s := newSiteThatWaits(t, everyName, "", nil, fleet.Waits{Lifetime: fleet.Lifetime, Now: clocks[0].Now})
	nc := s.asGateway(t, "default")
	other, err := fleet.NewRegistryWithTimeouts(nc, 1, testLog(t), nil, fleet.Waits{Patience: testkit.Patience, Lifetime: fleet.Lifetime, Now: clocks[1].Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !other.Knows() {
			return errors.New("the other gateway does not know the machines")
		}
		return nil
	})
	c := s.claimant(t, "box")
	for range 20 { // whichever gateway answers
		if got := c.asks(claim{instance: "first", sessions: 1}); got != "granted" {
			t.Fatalf("the first machine: %s", got)
		}
		if got := c.asks(claim{instance: "second"}); got != "first" {
			t.Fatalf("the second machine: %s", got)
		}
		for _, one := range clocks {
			one.advance(fleet.Lifetime / 2)
		}
	}
}

// link is a network that a test cuts, and that refuses connections then.
type link struct {
	mu    sync.Mutex
	isCut bool
	conns []net.Conn
}

// Dial implements nats.CustomDialer.
func (l *link) Dial(network, address string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut {
		return nil, errors.New("the network is cut")
	}
	conn, err := net.Dial(network, address)
	if err == nil {
		l.conns = append(l.conns, conn)
	}
	return conn, err
}

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = true
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
}

func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = false
}

// echo is a command of a client that says again what it reads.
type echo struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Scanner
}

func newEcho(t *testing.T, env *client.Environment) *echo {
	t.Helper()
	command := env.Command(t.Context(), "cat")
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return &echo{t, in, bufio.NewScanner(out)}
}

func (e *echo) says(text string) {
	e.t.Helper()
	testkit.Within(e.t, "the echo of "+text, func() {
		if _, err := fmt.Fprintln(e.in, text); err != nil || !e.out.Scan() || e.out.Text() != text {
			e.t.Errorf("%q came back for %q: %v %v", e.out.Text(), text, err, e.out.Err())
		}
	})
}

// says waits until a log has a text.
func says(t *testing.T, log *testkit.Buffer, want string) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !strings.Contains(log.String(), want) {
			return fmt.Errorf("%q is missing in the log:\n%s", want, log)
		}
		return nil
	})
}

// TestCutOffBesideAnother cuts a machine with a session off for minutes, while another one
// waits for its name. The session continues when the network is back, and the other machine is
// told who has the name.
func TestCutOffBesideAnother(t *testing.T) {
	t.Parallel()
	now := newClock()
	s := newSiteThatWaits(t, everyName, "", nil, fleet.Waits{Lifetime: fleet.Lifetime, Now: now.Now})
	network, log := new(link), new(testkit.Buffer)
	nc, err := s.connect(t, "any", "box", nats.SetCustomDialer(network))
	if err != nil {
		t.Fatal(err)
	}
	first, err := s.joinOver(t, t.Context(), nc, testLog(t), "box")
	if err != nil {
		t.Fatal(err)
	}
	env := mustDial(t, s.url+"/env/box")
	command := newEcho(t, env)
	command.says("before")
	kv := s.bucket(t, "default", fleet.Bucket)
	testkit.WaitFor(t, testkit.Patience, func() error {
		entry, err := kv.Get(t.Context(), "box")
		if err == nil && !strings.Contains(string(entry.Value()), `"sessions":1`) {
			err = errors.New(string(entry.Value()))
		}
		return err
	})
	network.cut()
	nc2, err := s.connect(t, "any", "box")
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 1)
	go func() {
		_, err := s.joinOver(t, t.Context(), nc2, slog.New(slog.NewTextHandler(log, nil)), "box")
		refused <- err
	}()
	says(t, log, "waiting until the machine that has the name has ended")
	asked, err := s.asGateway(t, "default").SubscribeSync("exec.register.box")
	if err == nil {
		err = asked.SetPendingLimits(-1, -1)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []time.Duration{7 * time.Second, time.Second, 10 * time.Minute} {
		now.advance(d)
		for range 3 { // the second of them, at the latest, comes after the answer to one that came now
			if _, err := asked.NextMsg(testkit.Patience); err != nil {
				t.Fatal(err)
			}
		}
	}
	select {
	case err := <-refused:
		t.Fatalf("the other machine does not wait: %v", err)
	default:
	}
	network.mend()
	testkit.Within(t, "the answer to the other machine", func() {
		err := <-refused
		for _, want := range []string{"box is the machine host-of-box since 2", "with 1 session;", "--name", "exec-fleet forget box"} {
			if !errors.Is(err, fleet.ErrNameTaken) || !strings.Contains(err.Error(), want) {
				t.Errorf("the other machine is told %v, want %q", err, want)
			}
		}
	})
	command.says("after")
	if stats := first.server.Stats(); !first.HasName() || stats.SessionsAttached != 1 || stats.Running != 1 {
		t.Errorf("the first machine has its name: %v, %+v", first.HasName(), stats)
	}
}

// TestNameLost gives the name of a machine with a session to another one. The machine goes on:
// the connections that it has stay, it takes no new ones, and it has its name again when the
// other one has left.
func TestNameLost(t *testing.T) {
	t.Parallel()
	s := newSite(t, everyName, "", nil)
	log := new(testkit.Buffer)
	nc, err := s.connect(t, "any", "box")
	if err != nil {
		t.Fatal(err)
	}
	first, err := s.joinOver(t, t.Context(), nc, slog.New(slog.NewTextHandler(log, nil)), "box")
	if err != nil {
		t.Fatal(err)
	}
	command := newEcho(t, mustDial(t, s.url+"/env/box"))
	command.says("before")
	kv := s.bucket(t, "default", fleet.Bucket)
	other, err := json.Marshal(fleet.Member{Name: "box", Host: "another", Instance: "another", Load: fleet.Load{Sessions: 3}})
	if err == nil {
		_, err = kv.Put(t.Context(), "box", other)
	}
	if err != nil {
		t.Fatal(err)
	}
	says(t, log, "the machine has lost its name")
	says(t, log, "box is the machine another since")
	command.says("without a name")
	for _, instance := range []string{"", "another"} {
		asked := fmt.Sprintf(`{"version":1,"key":"a.b","window":1048576,"instance":%q}`, instance)
		if answer, err := s.asGateway(t, "default").Request("exec.open.box", []byte(asked), 100*time.Millisecond); err == nil {
			t.Errorf("without its name it answers %s", answer.Data)
		}
	}
	if answer, err := s.asGateway(t, "default").Request("exec.control.box", []byte("drain"), 100*time.Millisecond); err == nil {
		t.Errorf("what is for the other machine it answers %s", answer.Data)
	}
	if err := kv.Delete(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	says(t, log, "the machine has its name again")
	command.says("with a name")
	mustDial(t, s.url+"/env/box")
	if stats := first.server.Stats(); stats.SessionsAttached != 2 || stats.Running != 1 {
		t.Errorf("%+v", stats)
	}
}

// TestTwin has a twin of a machine, which was resumed from the same snapshot, renew the lease
// first. The machine becomes another instance, so that no frame reaches both, and keeps its
// session for the time when the twin has left.
func TestTwin(t *testing.T) {
	t.Parallel()
	back, again := context.WithCancel(t.Context())
	s := newSiteThatWaits(t, everyName, "", nil, fleet.Waits{Attempt: func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		if back.Err() == nil { // the client waits for the twin, which does not answer
			context.AfterFunc(back, cancel)
		}
		return ctx, cancel
	}})
	log := new(testkit.Buffer)
	nc, err := s.connect(t, "any", "box")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = s.joinOver(t, t.Context(), nc, slog.New(slog.NewTextHandler(log, nil)), "box"); err != nil {
		t.Fatal(err)
	}
	command := newEcho(t, mustDial(t, s.url+"/env/box"))
	command.says("before")
	kv := s.bucket(t, "default", fleet.Bucket)
	entry := func() (m fleet.Member) {
		t.Helper()
		found, err := kv.Get(t.Context(), "box")
		if err == nil {
			err = json.Unmarshal(found.Value(), &m)
		}
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	twin := entry()
	twin.Renewal = "of the twin"
	text, err := json.Marshal(twin)
	if err == nil {
		_, err = kv.Put(t.Context(), "box", text)
	}
	if err != nil {
		t.Fatal(err)
	}
	says(t, log, "the machine has lost its name")
	asked := fmt.Sprintf(`{"version":1,"key":"a.b","window":1048576,"instance":%q}`, twin.Instance)
	if answer, err := s.asGateway(t, "default").Request("exec.open.box", []byte(asked), 100*time.Millisecond); err == nil {
		t.Errorf("what is for its twin it answers %s", answer.Data)
	}
	if err := kv.Delete(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	says(t, log, "the machine has its name again")
	testkit.WaitFor(t, testkit.Patience, func() error {
		if now := entry(); s.registries["default"].Revision("box") == 0 || now.Instance == twin.Instance {
			return fmt.Errorf("the entry is %+v", now)
		}
		return nil
	})
	again()
	command.says("without the twin")
	if now := entry(); now.Instance == twin.Instance || now.Load.Sessions != 1 {
		t.Errorf("afterwards the entry is %+v", now)
	}
}

// TestForgottenName forgets a silent machine that has sessions. Another one has its name then.
func TestForgottenName(t *testing.T) {
	t.Parallel()
	now := newClock()
	s := newSiteThatWaits(t, everyName, "", nil, fleet.Waits{Lifetime: fleet.Lifetime, Now: now.Now})
	c := s.claimant(t, "box")
	step := func(instance string, sessions int, want string) {
		t.Helper()
		if got := c.asks(claim{instance: instance, sessions: sessions}); got != want {
			t.Errorf("%s: %s, want %s", instance, got, want)
		}
	}
	step("first", 1, "granted")
	now.advance(fleet.Lifetime)
	s.listed(t)
	step("second", 0, "first")
	if status, text := s.ask(t, http.MethodDelete, "/fleet/box", ""); status != http.StatusNoContent {
		t.Errorf("forget: %d %s", status, text)
	}
	step("second", 0, "granted")
}

// TestSessionIsInTheLeaseAtOnce begins a session between two heartbeats. The lease says so
// before the next one.
func TestSessionIsInTheLeaseAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, everyName, "", nil)
	s.claimant(t, "other").asks(claim{instance: "other"}) // or the next request may come too soon
	nc, err := s.connect(t, "any", "box")
	if err != nil {
		t.Fatal(err)
	}
	m, err := fleet.Join(t.Context(), nc, fleet.Member{Name: "box"}, fleet.JoinOptions{
		Heartbeat: time.Hour,
		Serve:     func(c *natstransport.Conn) { _, _ = c.Read(nil) },
		Load:      func() fleet.Load { return fleet.Load{} }, Drain: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	if _, err := s.rawDial(t, "/env/box", ""); err != nil {
		t.Fatal(err)
	}
	kv := s.bucket(t, "default", fleet.Bucket)
	testkit.WaitFor(t, testkit.Patience, func() error {
		entry, err := kv.Get(t.Context(), "box")
		if err == nil && !strings.Contains(string(entry.Value()), `"connections":1`) {
			err = errors.New(string(entry.Value()))
		}
		return err
	})
}
