//go:build unix

package fleet_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"execserver/client"
	"execserver/fleet/internal/fleet"
	"execserver/internal/testkit"
)

// asGateway connects to NATS as the gateway, which sees all of an account.
func (s *site) asGateway(t testing.TB, account string) *nats.Conn {
	t.Helper()
	nc, err := s.broker.Connect(account, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.Timeout(testkit.Patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func (s *site) jetStream(t testing.TB, account string) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(s.asGateway(t, account))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// bucket opens a bucket of an account.
func (s *site) bucket(t testing.TB, account, name string) jetstream.KeyValue {
	t.Helper()
	kv, err := s.jetStream(t, account).KeyValue(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// registration is what a gateway answers to a machine.
type registration struct {
	Revision       uint64
	Error, Invalid string
}

// register asks a gateway to make an entry, until it has looked at it.
func register(t testing.TB, nc *nats.Conn, name, member string) (answer registration) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		m, err := nc.Request("exec.register."+name, []byte(`{"member":`+member+`}`), 100*time.Millisecond)
		if err != nil {
			return err
		}
		answer = registration{}
		if err := json.Unmarshal(m.Data, &answer); err != nil {
			t.Fatal(err)
		}
		if answer.Error != "" {
			return errors.New(answer.Error)
		}
		return nil
	})
	return answer
}

// TestManyAccounts has machines join more accounts than the NATS server could give 256 MiB
// of memory each.
func TestManyAccounts(t *testing.T) {
	const accounts = 200
	entries := ""
	for i := range accounts {
		entries += machineEntry(fmt.Sprint("token-", i), fmt.Sprint("account-", i), "*")
	}
	s := newSite(t, entries, "", nil)
	for i := range accounts {
		nc, err := s.connect(t, fmt.Sprint("token-", i), "box")
		if err != nil {
			t.Fatal(err)
		}
		register(t, nc, "box", `{"name":"box","instance":"i"}`)
		nc.Close()
	}
}

// fill fills the list of machines of an account.
func (s *site) fill(t *testing.T, account string) {
	t.Helper()
	js, err := jetstream.New(s.asGateway(t, account), jetstream.WithPublishAsyncMaxPending(1<<10))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, "filling the list", func() {
		for i := 0; ; i++ {
			put, err := js.PublishAsync(fmt.Sprint("$KV.", fleet.Bucket, ".filling-", i), []byte("{}"))
			if err != nil || i%(1<<10) != 0 {
				continue // too many are on their way for a moment, or this one is
			}
			select {
			case <-put.Ok():
			case err := <-put.Err():
				if strings.Contains(err.Error(), "maximum") {
					return
				}
			}
		}
	})
}

// TestFullRegister fills the list of machines of an account. Those in it stay, others cannot
// join, and another account is not concerned.
func TestFullRegister(t *testing.T) {
	s := newSite(t, machineEntry("red", "red", "*")+machineEntry("blue", "blue", "*"), "", nil)
	first := s.join(t, "red", "box")
	kv := s.bucket(t, "red", fleet.Bucket)
	s.fill(t, "red")
	before, err := kv.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		now, err := kv.Get(t.Context(), "box")
		if err == nil && now.Revision() == before.Revision() {
			err = errors.New("the machine does not renew its entry")
		}
		return err
	})
	other, err := s.connect(t, "red", "other")
	if err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		m, err := other.Request("exec.register.other", []byte(`{"member":{"name":"other","instance":"i"}}`), time.Second)
		if err == nil && !strings.Contains(string(m.Data), "maximum") {
			err = fmt.Errorf("a machine more gets the answer %s", m.Data)
		}
		return err
	})
	s.join(t, "blue", "box")
	if !first.HasName() {
		t.Error("the first machine has lost its name")
	}
}

// TestLeave has a machine leave right after it has joined, and while it renews its entry.
// Its name is free at once.
func TestLeave(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	s.join(t, "any", "first") // the list is there
	kv := s.bucket(t, "default", fleet.Bucket)
	for range 5 {
		s.join(t, "any", "box").Close()
		if entry, err := kv.Get(t.Context(), "box"); !errors.Is(err, jetstream.ErrKeyNotFound) {
			t.Fatalf("an entry is left: %v, %v", entry, err)
		}
	}
	// Another instance cannot take it away.
	s.join(t, "any", "box")
	nc, err := s.connect(t, "any", "box")
	if err != nil {
		t.Fatal(err)
	}
	register(t, nc, "box", `{"name":"box","instance":"other"},"leave":true`+`,"revision":0`)
	if _, err := kv.Get(t.Context(), "box"); err != nil {
		t.Errorf("after another instance has left: %v", err)
	}
}

// TestPlacementsAreGone takes the list of placed sessions away. A client that resumes one is
// told to try again, not that its session is unknown. The list comes back by itself.
func TestPlacementsAreGone(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	s.join(t, "any", "a")
	s.join(t, "any", "b")
	s.listed(t, "a", "b")
	env := mustDial(t, s.url+"/any")
	if err := env.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	const list = "KV_" + fleet.Placements
	js := s.jetStream(t, "default")
	if err := js.DeleteStream(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		_, err := client.Dial(t.Context(), s.url+"/any", &client.Options{Session: env.Session(), RecoveryTimeout: -1})
		if _, missing := js.Stream(t.Context(), list); !errors.Is(missing, jetstream.ErrStreamNotFound) {
			break // a gateway looks for its lists from time to time
		}
		if err == nil || !strings.Contains(err.Error(), "cannot find the session now") {
			t.Fatalf("without the list: %v", err)
		}
	}
	var again *client.Environment
	testkit.WaitFor(t, testkit.Patience, func() (err error) {
		again, err = client.Dial(t.Context(), s.url+"/any", &client.Options{RecoveryTimeout: -1})
		return err
	})
	if err := again.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := dialWith(t, s.url+"/any", &client.Options{Session: again.Session()}); err != nil {
		t.Fatal(err)
	}
}
