//go:build unix

package fleet_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"execserver/client"
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
		t.Errorf("%v", err)
	}
}
