//go:build unix

package fleet_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/client"
	"execserver/internal/testkit"
)

// TestNewerMachine has a machine that speaks the next version, and refuses connections as
// machines do. The client learns why.
func TestNewerMachine(t *testing.T) {
	s := newSite(t, machineEntry("box", "default", "box"), "", nil)
	nc, err := s.connect(t, "box", "box")
	if err != nil {
		t.Fatal(err)
	}
	_, err = nc.Subscribe("exec.open.box", func(m *nats.Msg) {
		var request struct{ Version int }
		if err := json.Unmarshal(m.Data, &request); err != nil {
			t.Error(err)
		}
		next := request.Version + 1
		_ = m.Respond(fmt.Appendf(nil, `{"version":%d,"refusal":"the machine speaks version %[1]d, not %d"}`, next, request.Version))
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Dial(t.Context(), s.url+"/env/box", nil)
	refused, _ := errors.AsType[*client.DialError](err)
	if refused == nil || refused.Status != http.StatusServiceUnavailable || !strings.Contains(err.Error(), "the machine refuses the connection: the machine speaks version ") {
		t.Errorf("the client learns %v", err)
	}
}

// TestOneReleaseApart has a machine of the next release: it says more than this gateway
// knows, in its entry and when it accepts a connection.
func TestOneReleaseApart(t *testing.T) {
	s := newSite(t, everyName, "", nil)
	nc, err := s.connect(t, "any", "box")
	if err != nil {
		t.Fatal(err)
	}
	frames := make(chan []byte, 16)
	_, err = nc.Subscribe("exec.open.box", func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"version":1,"instance":"next","window":1048576,"future":{"a":1}}`))
	})
	if err == nil {
		_, err = nc.Subscribe("exec.in.box.next.>", func(m *nats.Msg) { frames <- m.Data })
	}
	if err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, testkit.Patience, func() error { // the gateway may not have its list yet
		reply, err := nc.Request("exec.register.box", []byte(`{"member":{"name":"box","instance":"next","labels":{"a":"b"},"future":[1],"load":{"capacity":3,"future":2}},"future":true}`), time.Second)
		if err == nil && !strings.Contains(string(reply.Data), `"revision"`) {
			err = errors.New(string(reply.Data))
		}
		return err
	})
	s.listed(t, "box")
	conn, err := s.rawDial(t, "/env/box", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, "a frame", func() {
		for frame := range frames {
			if strings.HasSuffix(string(frame), "hello") {
				return
			}
		}
	})
}
