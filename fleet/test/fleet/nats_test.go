//go:build linux

package fleet

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"execserver/fleet/internal/natstest"
	"execserver/internal/testkit"
)

// TestOtherNATS uses a NATS server that no gateway runs, through two gateways.
func TestOtherNATS(t *testing.T) {
	t.Parallel()
	nats := natstest.Serve(t, func(o *server.Options) { o.JetStream, o.StoreDir = true, t.TempDir() })
	var gateways []*node
	for range 2 {
		n := &node{client: testkit.FreeAddress(t)}
		n.program = start(t, "gateway", "--listen", "ws://"+n.client, "--nats", nats.ClientURL())
		gateways = append(gateways, n)
	}
	start(t, "join", "--name", "box", "--fleet", nats.ClientURL(), "--without=cgroups")
	for _, n := range gateways {
		listed(t, n, 1)
		env, err := dialPatiently(t, "ws://"+n.client+"/env/box", nil)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := env.Command(t.Context(), "echo", "here").Output(); err != nil || string(out) != "here\n" {
			t.Errorf("%q, %v", out, err)
		}
		_ = env.Close()
	}
}
