//go:build unix

package fleet_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/client"
	"execserver/fleet/internal/broker"
	"execserver/fleet/internal/fleet"
	"execserver/fleet/natstransport"
	"execserver/internal/testkit"
)

// twoTenants are the machines and clients of two accounts.
func twoTenants(t *testing.T) *site {
	machines := machineEntry("red", "red", "red-*") + machineEntry("blue", "blue", "blue-*") + machineEntry("one", "red", "red-one")
	clients := clientEntry("rita", "scope = [\"full\"]\naccount = \"red\"") +
		clientEntry("rob", "scope = [\"exec\"]\naccount = \"red\"\nmachines = [\"red-1\", \"red-x*\"]") +
		clientEntry("bea", "scope = [\"full\"]\naccount = \"blue\"") +
		clientEntry("none", "scope = [\"full\"]\naccount = \"green\"")
	s := newSite(t, machines, clients, nil)
	for _, name := range []string{"red-1", "red-2"} {
		s.join(t, "red", name)
	}
	s.join(t, "blue", "blue-1")
	for token, want := range map[string]int{"rita": 2, "rob": 1, "bea": 1} {
		s.listedFor(t, clientToken(token), want)
	}
	return s
}

// TestClientsOfTenants tries what the tokens of clients do not allow.
func TestClientsOfTenants(t *testing.T) {
	s := twoTenants(t)
	for _, row := range []struct {
		token, machine string
		may            bool
	}{
		{"rita", "red-1", true},
		{"rita", "red-2", true},
		{"rita", "blue-1", false},
		{"rob", "red-1", true},
		{"rob", "red-2", false},
		{"rob", "blue-1", false},
		{"bea", "blue-1", true},
		{"bea", "red-1", false},
		{"bea", "*", false},
		{"bea", ">", false},
		{"none", "red-1", false},
		{"none", "blue-1", false},
		{"nobody", "red-1", false},
	} {
		_, err := dial(t, s.url+"/env/"+row.machine, clientToken(row.token))
		if (err == nil) != row.may {
			t.Errorf("%s at %s: %v", row.token, row.machine, err)
		}
	}
	for token, want := range map[string]string{"rita": "red-1 red-2", "rob": "red-1", "bea": "blue-1"} {
		if got := strings.Join(s.list(t, clientToken(token)), " "); got != want {
			t.Errorf("%s sees %q, want %q", token, got, want)
		}
	}
	for _, row := range []struct {
		token, method, path string
		status              int
	}{
		{"bea", http.MethodPost, "/fleet/red-1/drain", http.StatusNotFound},
		{"bea", http.MethodDelete, "/fleet/red-1", http.StatusNotFound}, // which is not in its account
		{"rob", http.MethodPost, "/fleet/red-1/drain", http.StatusForbidden},
		{"rob", http.MethodPost, "/fleet/red-2/drain", http.StatusNotFound},
		{"none", http.MethodGet, "/fleet", http.StatusForbidden},
		{"nobody", http.MethodGet, "/fleet", http.StatusUnauthorized},
		{"rita", http.MethodPut, "/fleet/red-1", http.StatusMethodNotAllowed},
		{"rita", http.MethodGet, "/fleet/red-1", http.StatusMethodNotAllowed},
		{"rita", http.MethodGet, "/", http.StatusNotFound},
	} {
		if status, text := s.ask(t, row.method, row.path, clientToken(row.token)); status != row.status {
			t.Errorf("%s %s %s: %d %s, want %d", row.token, row.method, row.path, status, text, row.status)
		}
	}
	if got := s.list(t, clientToken("rita")); len(got) != 2 {
		t.Errorf("rita sees %q afterwards", got)
	}
	// The scope of a token holds at the machine.
	env, err := dial(t, s.url+"/env/red-1", clientToken("rob"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := env.FS("/").ReadFile("etc/hostname"); err == nil || !strings.Contains(err.Error(), "credentials") {
		t.Errorf("a file without the scope files: %v", err)
	}
	if out, err := env.Command(t.Context(), "echo", "yes").Output(); err != nil || string(out) != "yes\n" {
		t.Errorf("a command: %q, %v", out, err)
	}
	// A session belongs to its principal, also through the gateway.
	other, err := dial(t, s.url+"/env/red-1", clientToken("rita"))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Dial(t.Context(), s.url+"/env/red-1", &client.Options{Token: clientToken("rob"), Session: other.Session()}); err == nil {
		t.Error("rob resumed a session of rita")
	}
}

// TestMachinesOfTenants tries what the token of a machine does not allow in NATS.
func TestMachinesOfTenants(t *testing.T) {
	s := twoTenants(t)
	for _, row := range []struct{ token, name string }{
		{"red", "blue-2"}, {"red", "gateway:red"}, {"red", "*"}, {"red", ""}, {"one", "red-two"}, {"one", "red-one2"}, {"nobody", "red-9"},
	} {
		if _, err := s.connect(t, row.token, row.name); err == nil {
			t.Errorf("the token of %s signs in as %q", row.token, row.name)
		}
	}
	intruder, err := s.connect(t, "red", "red-9")
	if err != nil {
		t.Fatal(err)
	}
	attack(t, intruder, "red-9", "red-1", "blue-1")
	// Nothing has changed.
	if got := fmt.Sprint(s.list(t, clientToken("rita")), s.list(t, clientToken("bea"))); got != "[red-1 red-2] [blue-1]" {
		t.Errorf("afterwards the machines are %s", got)
	}
	for _, m := range []string{"red-1", "red-2"} {
		if _, err := dial(t, s.url+"/env/"+m, clientToken("rita")); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	}
}

// attack tries what a machine may not do in NATS, about itself and about others.
func attack(t *testing.T, intruder *nats.Conn, own string, victims ...string) {
	t.Helper()
	t.Run("subscribe", func(t *testing.T) {
		subjects := []string{">", "*", "exec.>", "$JS.>", "$SYS.>", "$KV.>", "_INBOX.>", "_INBOX.*.>", "_GATEWAY.>", "_GATEWAY.*", "*.*.*.>", "exec.out." + own + ".>"}
		for _, victim := range victims {
			subjects = append(subjects, "exec.open."+victim, "exec.in."+victim+".>", "exec.out."+victim+".>", "exec.control."+victim, fleet.InboxPrefix(victim)+".>", "$KV."+fleet.Bucket+"."+victim)
		}
		for _, subject := range subjects {
			sub, err := intruder.SubscribeSync(subject)
			if err != nil {
				continue // refused at once
			}
			if err := intruder.Flush(); err != nil {
				t.Fatal(err)
			}
			if _, err := sub.NextMsg(100 * time.Millisecond); !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("subscribe to %s: %v", subject, err)
			}
		}
	})
	t.Run("publish", func(t *testing.T) {
		requests := map[string]string{
			"$JS.API.STREAM.NAMES": "{}", "$JS.API.STREAM.LIST": "{}", "$JS.API.INFO": "",
			"$JS.API.STREAM.CREATE.evil":                 `{"name":"evil","subjects":["evil"]}`,
			"$JS.API.STREAM.UPDATE.KV_" + fleet.Bucket:   "{}",
			"$JS.API.STREAM.DELETE.KV_" + fleet.Bucket:   "",
			"$JS.API.STREAM.PURGE.KV_" + fleet.Bucket:    "",
			"$JS.API.STREAM.MSG.GET.KV_" + fleet.Bucket:  `{"last_by_subj":"$KV.` + fleet.Bucket + `.` + victims[0] + `"}`,
			"$JS.API.CONSUMER.CREATE.KV_" + fleet.Bucket: `{"stream_name":"KV_` + fleet.Bucket + `","config":{"deliver_subject":"x"}}`,
			"$JS.API.DIRECT.GET.KV_" + fleet.Bucket:      `{"last_by_subj":"$KV.` + fleet.Bucket + `.` + victims[0] + `"}`,
			"$JS.API.STREAM.INFO.KV_" + fleet.Placements: "",
			"$KV." + fleet.Placements + ".session":       own,
			"$SYS.REQ.SERVER.PING":                       "",
			"$SRV.PING":                                  "",
			"$SRV.INFO.exec-gateway":                     "",
			// Also about itself: what JetStream stores and answers could reach others.
			"$KV." + fleet.Bucket + "." + own:                                            "{}",
			"$JS.API.STREAM.INFO.KV_" + fleet.Bucket:                                     `{"subjects_filter":">"}`,
			"$JS.API.DIRECT.GET.KV_" + fleet.Bucket + ".$KV." + fleet.Bucket + "." + own: "",
			"exec.register." + victims[0]:                                                `{"member":{"name":"` + victims[0] + `","instance":"i"}}`,
			"exec.open." + own:                                                           `{"version":1,"key":"a.b","window":1048576}`,
			"_INBOX." + own + ".x":                                                       "",
			"exec.out." + victims[0] + ".d.1":                                            "x",
		}
		for _, victim := range victims {
			requests["exec.open."+victim] = `{"version":1,"key":"a.b","window":1048576}`
			requests["exec.in."+victim+".a.b"] = "x"
			requests["exec.control."+victim] = "drain"
			requests["$KV."+fleet.Bucket+"."+victim] = "{}"
			requests["$JS.API.DIRECT.GET.KV_"+fleet.Bucket+".$KV."+fleet.Bucket+"."+victim] = ""
		}
		for subject, text := range requests {
			for _, header := range []nats.Header{nil, {"Nats-Rollup": {"all"}}} {
				m := &nats.Msg{Subject: subject, Data: []byte(text), Header: header}
				if answer, err := intruder.RequestMsg(m, 50*time.Millisecond); err == nil {
					t.Errorf("%s answers %s", subject, answer.Data)
				}
			}
		}
		t.Logf("%d requests", len(requests))
	})
}

// TestTokenOfOneMachine has a machine with a token that the gateway has made for it attack
// another one. It can sign in under no other name, and read and write nothing of the other one.
func TestTokenOfOneMachine(t *testing.T) {
	t.Parallel()
	tokens, err := broker.OpenTokens(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, "", "", func(o *broker.Options) { o.Machines = tokens.Machines })
	sign := func(token, name string) (*nats.Conn, error) {
		inbox := name
		if !natstransport.ValidName(name) {
			inbox = "evil"
		}
		nc, err := nats.Connect(s.broker.URL(), nats.UserInfo(name, token), nats.CustomInboxPrefix(fleet.InboxPrefix(inbox)), nats.NoReconnect(),
			nats.Timeout(testkit.Patience), nats.PermissionErrOnSubscribe(true), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err == nil {
			t.Cleanup(nc.Close)
		}
		return nc, err
	}
	token := make(map[string]string)
	for _, name := range []string{"box", "evil", "box-2"} {
		if token[name], err = tokens.Make(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"box", "box-2", "*", ">", "", "evil2", "gateway:default", "EVIL"} {
		if _, err := sign(token["evil"], name); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("the token of evil signs in as %q: %v", name, err)
		}
	}
	box, err := sign(token["box"], "box")
	if err != nil {
		t.Fatal(err)
	}
	machine, err := s.joinOver(t, t.Context(), box, testLog(t), "box")
	if err != nil {
		t.Fatal(err)
	}
	command := newEcho(t, mustDial(t, s.url+"/env/box"))
	evil, err := sign(token["evil"], "evil")
	if err != nil {
		t.Fatal(err)
	}
	attack(t, evil, "evil", "box", "box-2")
	command.says("after the attack")
	s.listed(t, "box")

	// A new token ends the one before, and a revoked one ends, too. Sessions stay.
	if _, err := tokens.Make("evil"); err != nil {
		t.Fatal(err)
	}
	if had, err := tokens.Revoke("box"); !had || err != nil {
		t.Fatalf("%v %v", had, err)
	}
	s.broker.Recheck()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !evil.IsClosed() || !box.IsClosed() {
			return errors.New("a machine whose token does not hold any more is connected")
		}
		return nil
	})
	for _, name := range []string{"evil", "box"} {
		if _, err := sign(token[name], name); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("the old token of %s signs in: %v", name, err)
		}
	}
	if had, err := tokens.Revoke("box"); had || err != nil {
		t.Errorf("revoking it again: %v %v", had, err)
	}
	if stats := machine.server.Stats(); stats.SessionsAttached+stats.SessionsDetached != 1 || stats.Running != 1 {
		t.Errorf("without its token the machine has %+v", stats)
	}
}
