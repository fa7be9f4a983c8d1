//go:build linux

package fleet

import (
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// supervisor is what systemd is for one gateway.
type supervisor struct{ *net.UnixConn }

func newSupervisor(t *testing.T) supervisor {
	t.Helper()
	address := filepath.Join(testkit.SocketDir(t), "n")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return supervisor{conn}
}

// environment tells a gateway where the supervisor listens.
func (s supervisor) environment() []string {
	return []string{"NOTIFY_SOCKET=" + s.LocalAddr().String()}
}

// hears checks what a gateway says next.
func (s supervisor) hears(t *testing.T, want string) {
	t.Helper()
	_ = s.SetReadDeadline(time.Now().Add(testkit.Patience)) // it cannot fail
	said := make([]byte, 100)
	n, err := s.Read(said)
	if err != nil || !regexp.MustCompile(`\A`+want+`\z`).Match(said[:n]) {
		t.Fatalf("the supervisor hears %q, %v; want %q", said[:n], err, want)
	}
}

// heardNothing checks that a gateway has said nothing yet.
func (s supervisor) heardNothing(t *testing.T) {
	t.Helper()
	self, err := net.Dial("unixgram", s.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	if _, err := self.Write([]byte("what the test says")); err != nil {
		t.Fatal(err)
	}
	s.hears(t, "what the test says")
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

// TestSupervisor starts a gateway as systemd does.
func TestSupervisor(t *testing.T) {
	t.Parallel()
	systemd := newSupervisor(t)
	n := &node{client: testkit.FreeAddress(t)}
	n.program = startWith(t, systemd.environment(), "gateway", "--listen", "ws://"+n.client, "--data", t.TempDir())
	systemd.hears(t, "READY=1")
	if got := readiness(t, n); got != http.StatusOK {
		t.Errorf("/readyz of a gateway that says it is ready answers %d", got)
	}
	n.signal(t, syscall.SIGHUP)
	systemd.hears(t, "RELOADING=1\nMONOTONIC_USEC=[0-9]+")
	systemd.hears(t, "READY=1")
	n.signal(t, syscall.SIGTERM)
	systemd.hears(t, "STOPPING=1")
}

// TestSupervisorOfCluster starts a gateway before the others of its cluster. It is ready when
// they are there, and a hangup does not make it so.
func TestSupervisorOfCluster(t *testing.T) {
	t.Parallel()
	nodes := newNodes(t, 3)
	first, others := nodes[0], nodes[1:]
	systemd := newSupervisor(t)
	first.program = startWith(t, systemd.environment(),
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
	systemd.heardNothing(t)
	startCluster(t, others, func(_, to int) string { return others[to].cluster })
	systemd.hears(t, "READY=1")
	if got := readiness(t, first); got != http.StatusOK {
		t.Errorf("/readyz of a gateway that says it is ready answers %d", got)
	}
}
