//go:build unix

package fleet_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"execserver/client"
	"execserver/fleet/internal/fleet"
	"execserver/internal/testkit"
	"execserver/transport"
)

// dial connects a client with a path of a gateway.
func dial(t testing.TB, url, token string) (*client.Environment, error) {
	t.Helper()
	return dialWith(t, url, &client.Options{Token: token})
}

func dialWith(t testing.TB, url string, opts *client.Options) (*client.Environment, error) {
	t.Helper()
	env, err := client.Dial(t.Context(), url, opts)
	if err == nil {
		t.Cleanup(func() { _ = env.Close() })
	}
	return env, err
}

func mustDial(t testing.TB, url string) *client.Environment {
	t.Helper()
	env, err := dial(t, url, "")
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// listed waits until the gateway lists machines exactly.
func (s *site) listed(t testing.TB, want ...string) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if got := s.list(t, ""); strings.Join(got, " ") != strings.Join(want, " ") {
			return fmt.Errorf("the gateway lists %q, want %q", got, want)
		}
		return nil
	})
}

// list returns the names that the gateway lists for a token.
func (s *site) list(t testing.TB, token string) (names []string) {
	t.Helper()
	status, text := s.ask(t, http.MethodGet, "/fleet", token)
	var machines []fleet.Member
	if err := json.Unmarshal([]byte(text), &machines); status != 200 || err != nil {
		t.Fatalf("%d %v %s", status, err, text)
	}
	for _, m := range machines {
		names = append(names, m.Name)
	}
	return names
}

// ask sends a request to the gateway.
func (s *site) ask(t testing.TB, method, path, token string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.http+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := browser.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

// everyName lets the token "any" take every name.
var everyName = machineEntry("any", "default", "*")

func TestCommandsAndFiles(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	s.join(t, "any", "box-7")
	env := mustDial(t, s.url+"/env/box-7")
	command := env.Command(t.Context(), "sh", "-c", "cat; echo done; exit 3")
	command.Stdin = strings.NewReader("typed")
	out, err := command.CombinedOutput()
	exit, ok := errors.AsType[*client.ExitError](err)
	if !ok || exit.ExitCode != 3 || string(out) != "typeddone\n" {
		t.Errorf("%q, %v", out, err)
	}
	dir := t.TempDir()
	large := strings.Repeat("0123456789abcdef", 1<<20)
	if err := env.FS(dir).WriteFile("large", []byte(large)); err != nil {
		t.Fatal(err)
	}
	if got, err := env.FS(dir).ReadFile("large"); err != nil || string(got) != large {
		t.Errorf("a file came back with %d bytes, %v", len(got), err)
	}
	if _, err := dial(t, s.url+"/env/box-8", ""); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a machine that is not there: %v", err)
	}
}

// TestLostConnections breaks the connection of the machine to NATS again and again while a
// command writes numbered lines. None is lost or comes twice.
func TestLostConnections(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	m := s.join(t, "any", "box")
	env := mustDial(t, s.url+"/env/box")
	const lines = 2_000_000
	command := env.Command(t.Context(), "sh", "-c", fmt.Sprintf("seq 1 %d; exit 7", lines))
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	scanner := bufio.NewScanner(out)
	n := 0
	for scanner.Scan() {
		if n++; scanner.Text() != fmt.Sprint(n) {
			t.Fatalf("line %d is %q", n, scanner.Text())
		}
		if n%300_000 == 0 {
			if err := m.nc.ForceReconnect(); err != nil {
				t.Fatal(err)
			}
		}
	}
	err = command.Wait()
	if exit, ok := errors.AsType[*client.ExitError](err); n != lines || !ok || exit.ExitCode != 7 {
		t.Errorf("%d lines of %d, %v", n, lines, err)
	}
	if resumed := m.server.Stats().SessionsResumed; resumed == 0 {
		t.Error("no connection broke")
	} else {
		t.Logf("the session was resumed %d times", resumed)
	}
}

// TestSuccessor joins under the name of a machine that drains, as in an upgrade. It waits
// until that one has left.
func TestSuccessor(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	old := s.join(t, "any", "box")
	s.listed(t, "box")
	if status, text := s.ask(t, http.MethodPost, "/fleet/box/drain", ""); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, text)
	}
	joined := make(chan error, 1)
	go func() {
		_, err := s.tryJoin(t, t.Context(), "any", "box")
		joined <- err
	}()
	s.heartbeats(t, "box", 10)
	select {
	case err := <-joined:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	old.Close()
	testkit.Within(t, "the new machine", func() {
		if err := <-joined; err != nil {
			t.Error(err)
		}
	})
}

// heartbeats waits until so many heartbeats of a machine have come.
func (s *site) heartbeats(t *testing.T, name string, n int) {
	t.Helper()
	kv := s.bucket(t, "default", fleet.Bucket)
	watcher, err := kv.Watch(t.Context(), name, jetstream.UpdatesOnly())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watcher.Stop() }()
	testkit.Within(t, "heartbeats", func() {
		for range n {
			<-watcher.Updates()
		}
	})
}

func TestNameIsTaken(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	first := s.join(t, "any", "box")
	start := time.Now()
	_, err := s.tryJoin(t, t.Context(), "any", "box")
	if !errors.Is(err, fleet.ErrNameTaken) || !strings.Contains(err.Error(), "host-of-box") {
		t.Errorf("a second machine: %v", err)
	}
	t.Logf("it took %v to refuse a second machine", time.Since(start))
	first.Close()
	s.listed(t)
	s.join(t, "any", "box")
	s.listed(t, "box")
}

// TestKilledMachine lets a machine vanish. It is not listed any more once its entry has lived
// its time without a heartbeat, and another one can take its name.
func TestKilledMachine(t *testing.T) {
	s := newSiteThatWaits(t, everyName, "", nil, fleet.Waits{Lifetime: 2 * time.Second})
	first := s.join(t, "any", "box")
	s.listed(t, "box")
	first.nc.Close()
	s.listed(t)
	s.join(t, "any", "box")
}

// TestEntryGone removes the entry of a live machine, which makes it again.
func TestEntryGone(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	s.join(t, "any", "box")
	s.listed(t, "box")
	if status, text := s.ask(t, http.MethodDelete, "/fleet/box", ""); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, text)
	}
	s.listed(t, "box")
	if status, _ := s.ask(t, http.MethodPost, "/fleet/nobody/drain", ""); status != http.StatusNotFound {
		t.Errorf("draining nobody: %d", status)
	}
}

func TestPlacement(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	a := s.join(t, "any", "a", "gpu=h100")
	b := s.join(t, "any", "b", "gpu=h100", "zone=1")
	c := s.join(t, "any", "c")
	s.listed(t, "a", "b", "c")
	sessions := func(m *machine) int { return m.server.Stats().SessionsAttached }
	for range 6 {
		mustDial(t, s.url+"/any?label=gpu%3Dh100")
	}
	if sessions(a) != 3 || sessions(b) != 3 || sessions(c) != 0 {
		t.Fatalf("6 sessions were placed %d, %d and %d", sessions(a), sessions(b), sessions(c))
	}
	mustDial(t, s.url+"/any")
	if sessions(c) != 1 {
		t.Fatal("the idle machine was not chosen")
	}
	if _, err := dial(t, s.url+"/any?label=gpu%3Da100", ""); err == nil || !strings.Contains(err.Error(), "503") {
		t.Fatalf("a label that no machine has: %v", err)
	}
	// A drained machine gets nothing new, but its sessions can be resumed.
	owner := mustDial(t, s.url+"/any?label=zone")
	if status, text := s.ask(t, http.MethodPost, "/fleet/b/drain", ""); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, text)
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		_, text := s.ask(t, http.MethodGet, "/fleet?label=zone", "")
		if !strings.Contains(text, `"draining":true`) {
			return errors.New(text)
		}
		return nil
	})
	before := sessions(b)
	for range 3 {
		mustDial(t, s.url+"/any?label=gpu")
	}
	if sessions(b) != before {
		t.Fatal("a machine that drains got a session")
	}
	if err := owner.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := dialWith(t, s.url+"/any", &client.Options{Session: owner.Session()}); err != nil {
		t.Fatalf("resume at any machine: %v", err)
	}
}

// TestRevoked takes the token of a client away.
func TestRevoked(t *testing.T) {
	clients := clientEntry("ann", `scope = ["full"]`)
	s := newSite(t, everyName, clients, nil)
	m := s.join(t, "any", "box")
	env, err := dialWith(t, s.url+"/env/box", &client.Options{Token: clientToken("ann"), RecoveryTimeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.server.Stats().SessionsAttached; got != 1 {
		t.Fatalf("%d sessions", got)
	}
	s.gateway.Recheck(nobody)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if env.Err() == nil {
			return errors.New("the connection continues")
		}
		return nil
	})
	if err := env.Err(); !strings.Contains(err.Error(), "revoked") {
		t.Errorf("the end: %v", err)
	}
}

// TestMachineRevoked takes a token of a machine away.
func TestMachineRevoked(t *testing.T) {
	s := newSiteThatWaits(t, everyName, "", nil, fleet.Waits{Lifetime: 2 * time.Second})
	m := s.join(t, "any", "box")
	gone := make(chan struct{})
	m.nc.SetDisconnectErrHandler(func(*nats.Conn, error) { close(gone) })
	m.nc.SetReconnectHandler(func(*nats.Conn) { t.Error("the machine came back") })
	s.revokeMachines(t)
	testkit.Within(t, "the end of the connection", func() { <-gone })
	s.listed(t)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if _, err := s.tryJoin(t, ctx, "any", "box"); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("join again: %v", err)
	}
}

// listedFor waits until the gateway lists a number of machines for a token.
func (s *site) listedFor(t testing.TB, token string, n int) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if got := s.list(t, token); len(got) != n {
			return fmt.Errorf("the gateway lists %q", got)
		}
		return nil
	})
}

// rawClient is a client that reads only when it is told to.
type rawClient struct {
	t    testing.TB
	conn transport.Conn
}

func (s *site) rawClient(t testing.TB, initialize string) *rawClient {
	t.Helper()
	conn, err := s.rawDial(t, "/env/box", "")
	if err != nil {
		t.Fatal(err)
	}
	c := &rawClient{t, conn}
	c.send(`{"id":1,"method":"initialize","params":{"clientName":"test"` + initialize + `}}`)
	c.send(`{"method":"initialized","params":{}}`)
	return c
}

func (c *rawClient) send(text string) {
	c.t.Helper()
	if err := c.conn.Write([]byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// flood starts a command that writes numbered lines.
func (c *rawClient) flood(lines int) {
	c.t.Helper()
	c.send(fmt.Sprintf(`{"id":2,"method":"process/start","params":{"processId":"p","argv":["seq","%d"],"cwd":"/","env":{},"tty":false}}`, lines))
}

// message is a message of a server.
type message struct {
	Method string
	Result struct{ SessionID string }
	Params struct {
		Seq   int
		Chunk []byte
	}
}

func (c *rawClient) read() (m message) {
	c.t.Helper()
	text, err := c.conn.Read(nil)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// stalled waits until a command of the machine blocks because nobody reads its output.
func (m *machine) stalled(t testing.TB) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if m.server.Stats().Stalled == 0 {
			return errors.New("the command does not block yet")
		}
		return nil
	})
}

// TestNothingIsAcknowledgedEarly has a client that stops to read, and loses its connection
// while the gateway holds what it has not read. Its next connection gets everything.
func TestNothingIsAcknowledgedEarly(t *testing.T) {
	const lines = 500_000
	s := newSite(t, everyName, "", nil)
	s.retained = 64 << 10
	m := s.join(t, "any", "box")
	c := s.rawClient(t, "")
	session := c.read().Result.SessionID
	c.flood(lines)
	var out []byte
	last := 0
	for last < 3 { // it has answered the first ping, which follows the first event
		if got := c.read(); got.Method == "process/output" {
			last, out = got.Params.Seq, append(out, got.Params.Chunk...)
		}
	}
	m.stalled(t)
	time.Sleep(2 * time.Second) // longer than the server waits for the answer to a first ping
	_ = c.conn.Close(transport.Reason{Code: transport.CodeGoingAway})
	c = s.rawClient(t, `,"resumeSessionId":"`+session+`"`)
	for {
		got := c.read()
		if got.Params.Seq > last+1 {
			t.Fatalf("event %d came after %d", got.Params.Seq, last)
		}
		if got.Params.Seq == last+1 {
			last++
			out = append(out, got.Params.Chunk...)
		}
		if got.Method == "process/exited" {
			break
		}
	}
	want := new(strings.Builder)
	for i := range lines {
		fmt.Fprintln(want, i+1)
	}
	if string(out) != want.String() {
		t.Errorf("%d bytes came, want %d", len(out), want.Len())
	}
}

// TestStalledClient lets a client not read, and the machine end. The gateway does not keep
// the connection for the client.
func TestStalledClient(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	s.retained = 256 << 20 // more than the system buffers for a connection
	m := s.join(t, "any", "box")
	s.rawClient(t, "").flood(1 << 30)
	m.stalled(t)
	m.nc.Close()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := s.gateway.Counts().Relays; n != 0 {
			return fmt.Errorf("the gateway has %d connections", n)
		}
		return nil
	})
}
