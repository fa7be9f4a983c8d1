//go:build linux

package fleet

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"execserver/internal/testkit"
)

// TestRegions runs the two NATS servers of docs/fleet.md from the files that stand there, a
// gateway at the hub and a machine at the leaf node. The connection between the two regions
// is reset, and falls silent, while sessions stream and type: no line is lost or comes twice.
func TestRegions(t *testing.T) {
	t.Parallel()
	authority := testkit.NewAuthority(t, "ours")
	cert, key := authority.Server()
	gatewayKey, gatewaySeed := nkey(t)
	machineKey, machineSeed := nkey(t)
	hub, leafnodes, west := testkit.FreeAddress(t), testkit.FreeAddress(t), testkit.FreeAddress(t)
	between := testkit.NewLink(t, leafnodes)
	here := strings.NewReplacer(
		"0.0.0.0:7422", leafnodes, "hub.example:7422", between.Address(), "/var/lib/nats", t.TempDir(),
		"/etc/nats/cert.pem", cert, "/etc/nats/key.pem", key, "/etc/nats/ca.pem", authority.File,
		"UGATEWAY", gatewayKey, "UBOX7", machineKey,
	)
	runNATS(t, "hub.conf", hub, here)
	runNATS(t, "west.conf", west, here)

	n := &node{client: testkit.FreeAddress(t)}
	n.program = start(t, "gateway", "--listen", "ws://"+n.client, "--nats", "tls://"+hub, "--fleet-nkey", gatewaySeed, "--fleet-ca", authority.File)
	start(t, "join", "--name", "box-7", "--fleet", "tls://"+west, "--fleet-nkey", machineSeed, "--fleet-ca", authority.File, "--without=cgroups")
	listed(t, n, 1)
	url := "ws://" + n.client + "/env/box-7"
	env, err := dialPatiently(t, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close()
	if out, err := env.Command(t.Context(), "seq", "100000").Output(); err != nil || len(out) != 588_895 {
		t.Errorf("%d bytes, %v", len(out), err)
	}

	var of atomic.Pointer[outages]
	of.Store(new(outages))
	over, ended := make(chan struct{}), make(chan error)
	const sessions = 3
	for range sessions {
		go func() { ended <- runSession(t, url, &of, over) }()
	}
	of.Load().allStream(t, sessions)
	for i, state := range []testkit.LinkState{testkit.LinkRefused, testkit.LinkSilent} {
		time.Sleep(time.Second) // sessions stream
		between.Set(state)
		testkit.WaitFor(t, testkit.Patience, func() error {
			if got := of.Load().begun(); got < (i+1)*sessions {
				return fmt.Errorf("the connections of %d sessions have broken", got)
			}
			return nil
		})
		between.Set(testkit.LinkOpen)
		testkit.WaitFor(t, testkit.Patience, func() error {
			if got := len(of.Load().sorted()); got < (i+1)*sessions {
				return fmt.Errorf("%d sessions have recovered", got)
			}
			return nil
		})
	}
	close(over)
	for range sessions {
		testkit.Within(t, "the end of a session", func() {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	all := of.Load().sorted()
	t.Logf("%d recoveries, the longest in %v", len(all), all[len(all)-1])
}

// nkey makes a key of NATS, and returns the public one and the file of its seed.
func nkey(t *testing.T) (public, file string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err = pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	return public, testkit.Secret(t, string(seed))
}

// configuration returns a file of NATS that stands in docs/fleet.md.
func configuration(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "fleet.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n# "+name+"\n")
	content, _, ended := strings.Cut(rest, "\n```\n")
	if !ok || !ended {
		t.Fatalf("docs/fleet.md has no %s", name)
	}
	return content
}

// runNATS runs a NATS server with a file of docs/fleet.md, at an address and with other
// changes that here makes.
func runNATS(t *testing.T, name, address string, here *strings.Replacer) {
	t.Helper()
	text := strings.Replace(configuration(t, name), "0.0.0.0:4222", address, 1)
	file := testkit.Secret(t, here.Replace(text))
	cmd := exec.Command(os.Args[0], "-c", file)
	cmd.Env = append(os.Environ(), roleVariable+"=nats")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := new(testkit.Buffer)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", name, last(log.String()))
		}
	})
	testkit.WaitFor(t, testkit.Patience, func() error {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return fmt.Errorf("%w: %s", err, log)
		}
		return conn.Close()
	})
}

// serveNATS is a program that is a NATS server with a file, as "nats-server -c FILE" is.
func serveNATS() {
	opts, err := server.ProcessConfigFile(os.Args[2])
	exit(err)
	s, err := server.NewServer(opts)
	exit(err)
	s.ConfigureLogger()
	s.Start()
	s.WaitForShutdown()
}
