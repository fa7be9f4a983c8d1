//go:build unix

package broker_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/fleet/internal/broker"
	"execserver/internal/testkit"
)

const token = "a token that nobody guesses"

// entry is a [[machine]] with the token.
func entry(name, account, rest string) string {
	return fmt.Sprintf("[[machine]]\nname = %q\naccount = %q\nsha256 = \"%x\"\n%s\n", name, account, sha256.Sum256([]byte(token)), rest)
}

// served is a broker, and the file of its machines.
type served struct {
	*broker.Broker
	machines *broker.Machines
	file     string
}

func serve(t testing.TB, log io.Writer, text string) *served {
	t.Helper()
	s := &served{file: testkit.Secret(t, text)}
	var err error
	if s.machines, err = broker.ReadMachines(s.file); err != nil {
		t.Fatal(err)
	}
	s.Broker, err = broker.New(broker.Options{
		Data: t.TempDir(), Listen: []string{"nats://127.0.0.1:0"}, Machines: s.machines,
		Accounts: []string{"default", "red", "blue"}, Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// change replaces the file.
func (s *served) change(t testing.TB, text string) {
	t.Helper()
	if err := os.WriteFile(s.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.machines.Refresh(); err != nil {
		t.Fatal(err)
	}
}

// join connects a machine, which does not come back after a disconnection.
func (s *served) join(t testing.TB, name string) (*nats.Conn, error) {
	t.Helper()
	nc, err := nats.Connect(s.URL(), nats.UserInfo(name, token), nats.NoReconnect(), nats.Timeout(testkit.Patience), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err == nil {
		t.Cleanup(nc.Close)
	}
	return nc, err
}

// TestTokensOfMachinesEnd has a machine stay connected when its token does not hold any more
// for what it is, which the next look at the tokens ends.
func TestTokensOfMachinesEnd(t *testing.T) {
	t.Run("another account", func(t *testing.T) {
		s := serve(t, io.Discard, entry("box", "red", "")+entry("other", "red", ""))
		box, err := s.join(t, "box")
		if err != nil {
			t.Fatal(err)
		}
		other, err := s.join(t, "other")
		if err != nil {
			t.Fatal(err)
		}
		s.change(t, entry("box", "blue", "")+entry("other", "red", ""))
		s.Recheck()
		testkit.WaitFor(t, testkit.Patience, func() error {
			if !box.IsClosed() {
				return errors.New("the machine is connected to its old account")
			}
			return nil
		})
		if _, err := other.RTT(); err != nil {
			t.Errorf("a machine whose entry is the same: %v", err)
		}
	})
	t.Run("expired", func(t *testing.T) {
		s := serve(t, io.Discard, "")
		var box *nats.Conn
		for lifetime := 2 * time.Second; box == nil; lifetime *= 2 {
			s.change(t, entry("box", "red", "expires = "+time.Now().UTC().Add(lifetime).Format(time.RFC3339)))
			box, _ = s.join(t, "box") // too late on a slow machine
		}
		testkit.WaitFor(t, testkit.Patience, func() error {
			s.Recheck()
			if !box.IsClosed() {
				return errors.New("the machine is connected after its token has expired")
			}
			return nil
		})
	})
}

// TestManySubscriptions has a machine subscribe without end.
func TestManySubscriptions(t *testing.T) {
	s := serve(t, io.Discard, entry("*", "red", ""))
	modest, err := s.join(t, "modest")
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"exec.open.modest", "exec.in.modest.i.*.*", "exec.control.modest", "_INBOX.modest.>"} {
		if _, err := modest.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	const asked = 30_000
	go func() {
		w := bufio.NewWriter(conn)
		fmt.Fprintf(w, "CONNECT {\"user\":\"box\",\"pass\":%q}\r\n", token)
		for i := range asked {
			fmt.Fprintf(w, "SUB exec.in.box.i.d.%d %d\r\n", i, i)
		}
		fmt.Fprint(w, "PING\r\n")
		_ = w.Flush() // the end is noticed below
	}()
	refused := 0
	lines := bufio.NewScanner(conn)
	for lines.Scan() && lines.Text() != "PONG" {
		if strings.Contains(lines.Text(), "maximum subscriptions exceeded") {
			refused++
		}
	}
	if lines.Text() == "PONG" && refused < asked-20_000 {
		t.Errorf("of %d subscriptions %d were refused", asked, refused)
	}
	s.Recheck()
	for lines.Scan() { // ends with the connection
	}
	if timeout, ok := errors.AsType[net.Error](lines.Err()); ok && timeout.Timeout() {
		t.Error("the machine is still connected")
	}
	if _, err := modest.RTT(); err != nil {
		t.Errorf("a machine with four subscriptions: %v", err)
	}
}

// TestWrongSignIns guesses tokens. The log does not grow with the guesses, and repeats nothing
// that was sent.
func TestWrongSignIns(t *testing.T) {
	log := new(testkit.Buffer)
	s := serve(t, log, entry("box", "red", ""))
	start := time.Now()
	const guesses = 200
	for i := range guesses {
		_, err := nats.Connect(s.URL(), nats.UserInfo([]string{"box", "not\x1b[a name"}[i%2], "a guess that is wrong"), nats.Timeout(testkit.Patience))
		if !errors.Is(err, nats.ErrAuthorization) {
			t.Fatalf("a wrong token: %v", err)
		}
	}
	text := log.String()
	if n, most := strings.Count(text, "refused"), int(time.Since(start)/time.Second)+2; n < 1 || n > most {
		t.Errorf("%d guesses make %d lines, want 1 to %d", guesses, n, most)
	}
	if strings.Contains(text, "authentication") || strings.Contains(text, "guess") || strings.Contains(text, "a name") {
		t.Errorf("the log says %s", text)
	}
	if _, err := s.join(t, "box"); err != nil {
		t.Errorf("the right token afterwards: %v", err)
	}
}

// TestManyConnections has a machine connect again and again. The last connections stay.
func TestManyConnections(t *testing.T) {
	s := serve(t, io.Discard, entry("*", "red", ""))
	other, err := s.join(t, "other")
	if err != nil {
		t.Fatal(err)
	}
	var last *nats.Conn
	for range 50 {
		if last, err = s.join(t, "box"); err != nil {
			t.Fatal(err)
		}
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if clients, _ := s.Clients(); clients > 10 {
			return fmt.Errorf("%d clients are connected", clients)
		}
		return nil
	})
	for _, nc := range []*nats.Conn{other, last} {
		if err := nc.Flush(); err != nil {
			t.Error(err)
		}
	}
}

// TestForbiddenMessages has a machine send what it may not send. The log tells of some.
func TestForbiddenMessages(t *testing.T) {
	var log lines
	s := serve(t, &log, entry("*", "red", ""))
	nc, err := s.join(t, "box")
	if err != nil {
		t.Fatal(err)
	}
	const messages = 20_000
	for range messages {
		if err := nc.Publish("exec.out.other.x", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := log.count.Load(); n == 0 || n > messages/10 {
		t.Errorf("%d messages cause %d lines of the log", messages, n)
	}
}

// lines counts the lines of a log.
type lines struct{ count atomic.Int64 }

func (l *lines) Write(b []byte) (int, error) {
	l.count.Add(int64(bytes.Count(b, []byte("\n"))))
	return len(b), nil
}
