//go:build linux

package fleet

import (
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// heardBy returns a function that checks what a gateway says next.
func heardBy(t *testing.T, systemd *testkit.ServiceManager) func(want string) {
	return func(want string) {
		t.Helper()
		if err := systemd.Hears(want); err != nil {
			t.Fatal(err)
		}
	}
}

func (p *program) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// readiness returns the answer of a gateway to /readyz.
func readiness(t *testing.T, n *node) int {
	t.Helper()
	browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := browser.Get("http://" + n.client + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

// TestServiceManager starts a gateway as systemd does.
func TestServiceManager(t *testing.T) {
	t.Parallel()
	systemd := testkit.NewServiceManager(t)
	hears := heardBy(t, systemd)
	n := &node{client: testkit.FreeAddress(t)}
	n.program = startWith(t, []string{systemd.Environment()}, "gateway", "--listen", "ws://"+n.client, "--data", t.TempDir())
	hears("READY=1")
	if got := readiness(t, n); got != http.StatusOK {
		t.Errorf("/readyz of a gateway that says it is ready answers %d", got)
	}
	n.signal(t, syscall.SIGHUP)
	hears("RELOADING=1\nMONOTONIC_USEC=[0-9]+")
	hears("READY=1")
	n.signal(t, syscall.SIGTERM)
	hears("STOPPING=1")
}

// TestServiceManagerOfCluster starts a gateway before the others of its cluster. It is ready when
// they are there, and a hangup does not make it so.
func TestServiceManagerOfCluster(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	first, others := nodes[0], nodes[1:]
	systemd := testkit.NewServiceManager(t)
	hears := heardBy(t, systemd)
	first.program = startWith(t, []string{systemd.Environment()},
		"gateway", "--listen", "ws://"+first.client, "--fleet-listen", "nats://"+first.fleet, "--machines", machinesFile(t),
		"--data", t.TempDir(), "--node", "first", "--cluster-listen", "nats://"+first.cluster, "--log-level", "info",
		"--cluster-secret-file", testkit.Secret(t, clusterSecret), "--routes", "nats://"+others[0].cluster, "--routes", "nats://"+others[1].cluster)
	if got := readiness(t, first); got != http.StatusServiceUnavailable {
		t.Errorf("/readyz of a gateway without its cluster answers %d", got)
	}
	first.signal(t, syscall.SIGHUP)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !strings.Contains(first.log.String(), "checking for changed files") {
			return errors.New(first.log.String())
		}
		return nil
	})
	if err := systemd.Say("what the test says"); err != nil {
		t.Fatal(err)
	}
	hears("what the test says") // nothing came before it
	startCluster(t, others, func(_, to int) string { return others[to].cluster })
	hears("READY=1")
	if got := readiness(t, first); got != http.StatusOK {
		t.Errorf("/readyz of a gateway that says it is ready answers %d", got)
	}
}
