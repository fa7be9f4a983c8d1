//go:build linux

// Package fleet runs fleets of real processes: gateways in a cluster that are killed, cut off
// and started again, two regions, many machines, a reader that stalls, and real clients
// through a gateway.
//
//	FLEET_SESSIONS=200 FLEET_PACE=100ms FLEET_SECONDS=60 FLEET_STRICT=1 go test -v -run Cluster ./test/fleet
//	FLEET_MACHINES=2000 go test -v -run Many ./test/fleet
package fleet

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// roleVariable makes this program something else than the tests.
const roleVariable = "EXEC_SERVER_TEST_FLEET"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "writer":
		write()
	case "machines":
		joinMany()
	case "nats":
		serveNATS()
	case "serve":
		serveThrough()
	case "squat":
		squat()
	default:
		testkit.DefaultSignals()
		testkit.VerifyMain(m)
	}
}

// build builds exec-fleet, and exec-server beside it, once. It returns the path of the first.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "fleet")
	if err != nil {
		return "", err
	}
	for module, program := range map[string]string{"../..": "exec-fleet", "../../..": "exec-server"} {
		command := exec.Command("go", "build", "-o", filepath.Join(dir, program), "./cmd/"+program)
		command.Dir = module
		if out, err := command.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
	}
	return filepath.Join(dir, "exec-fleet"), nil
})

const (
	token         = "the token of every machine"
	clusterSecret = "the secret of the cluster"
)

func machinesFile(t *testing.T) string {
	return testkit.Secret(t, fmt.Sprintf("[[machine]]\nname = \"*\"\nsha256 = \"%x\"\n", sha256.Sum256([]byte(token))))
}

// program is a process of exec-server, if it serves, else of exec-fleet.
type program struct {
	args, env []string // env besides that of the test
	cmd       *exec.Cmd
	log       *testkit.Buffer
}

// start starts the command, which ends with the test, and waits until it listens.
func start(t *testing.T, args ...string) *program {
	t.Helper()
	return startWith(t, nil, args...)
}

// startWith is like start with some more environment.
func startWith(t *testing.T, env []string, args ...string) *program {
	t.Helper()
	p := &program{args: args, env: env, log: new(testkit.Buffer)}
	p.start(t)
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		_ = p.cmd.Wait()
		if t.Failed() && p.log.String() != "" {
			t.Logf("%s:\n%s", p.args, last(p.log.String()))
		}
	})
	return p
}

func last(text string) string { return text[max(0, len(text)-2000):] }

func (p *program) start(t *testing.T) {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	if p.args[0] == "serve" {
		path = filepath.Join(filepath.Dir(path), "exec-server")
	}
	p.cmd = exec.Command(path, p.args...)
	p.cmd.Env = append(os.Environ(), p.env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = p.log
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(testkit.Patience, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%s: %q, %v\n%s", p.args, line, err, p.log.String())
	}
}

// kill kills the process at once.
func (p *program) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait()
}

// node is a gateway with its NATS server.
type node struct {
	*program
	client, fleet, cluster string // addresses
	tokens                 bool   // it makes a token for each machine, and has no file of them
	tokenFile              string // for clients that may make one; "" if no token is needed
}

// tokenOf makes the token of a machine.
func (n *node) tokenOf(t *testing.T, name string) string {
	t.Helper()
	args := []string{"token", name}
	if n.tokenFile != "" {
		args = append(args, "--gateway", "ws://"+n.client, "--token-file", n.tokenFile)
	}
	text, errOut, code := fleetCommand(t, n, args...)
	if code != 0 {
		t.Fatalf("token %s: %s", name, errOut)
	}
	return text
}

// newNodes returns nodes that do not run yet.
func newNodes(t *testing.T, n int) []*node {
	t.Helper()
	nodes := make([]*node, n)
	for i := range nodes {
		nodes[i] = &node{client: testkit.FreeAddress(t), fleet: testkit.FreeAddress(t), cluster: testkit.FreeAddress(t)}
	}
	return nodes
}

// startCluster starts nodes. route returns the address at which one reaches another one.
func startCluster(t *testing.T, nodes []*node, route func(from, to int) string, more ...string) {
	t.Helper()
	machines, shared := machinesFile(t), testkit.Secret(t, clusterSecret)
	var wg sync.WaitGroup
	for i, one := range nodes {
		args := []string{
			"gateway", "--listen", "ws://" + one.client, "--fleet-listen", "nats://" + one.fleet, "--machines", machines,
			"--data", t.TempDir(), "--node", fmt.Sprint("n", i), "--cluster-listen", "nats://" + one.cluster, "--cluster-secret-file", shared,
		}
		for other := range nodes {
			if other != i {
				args = append(args, "--routes", "nats://"+route(i, other))
			}
		}
		args = append(args, more...)
		wg.Go(func() { one.program = start(t, args...) })
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow() // start could only end its goroutine
	}
}

// join starts a machine.
func join(t *testing.T, nodes []*node, name string, args ...string) *program {
	t.Helper()
	secret := token
	if nodes[0].tokens {
		secret = nodes[0].tokenOf(t, name)
	}
	args = append([]string{"join", "--name", name, "--token-file", testkit.Secret(t, secret), "--without=cgroups"}, args...)
	for _, n := range nodes {
		args = append(args, "--fleet", "nats://"+n.fleet)
	}
	return start(t, args...)
}

// front passes connections on to the first of several addresses that answers, as a load
// balancer does.
type front struct {
	l    net.Listener
	mu   sync.Mutex
	to   []string
	next int
	wg   sync.WaitGroup
}

func newFront(t *testing.T, to ...string) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{l: l, to: to}
	f.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.wg.Go(func() { f.pass(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); f.wg.Wait() })
	return f
}

func (f *front) url() string { return "ws://" + f.l.Addr().String() }

func (f *front) pass(conn net.Conn) {
	defer conn.Close()
	f.mu.Lock()
	f.next++
	first := f.next
	f.mu.Unlock()
	for i := range f.to {
		far, err := new(net.Dialer).DialContext(context.Background(), "tcp", f.to[(first+i)%len(f.to)])
		if err != nil {
			continue
		}
		var wg sync.WaitGroup
		wg.Go(func() { pump(far, conn) })
		pump(conn, far)
		wg.Wait()
		return
	}
}

// pump copies until either end is closed, and closes both.
func pump(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// paceVariable is the time between two lines of a writer. Two hundred writers that write every
// 20 ms are all that two processors can do.
const paceVariable = "FLEET_PACE"

// write is the program that sessions run: it writes numbered lines at a steady pace until
// standard input ends, echoes what is typed, and exits with 5.
func write() {
	var mu sync.Mutex
	out := bufio.NewWriter(os.Stdout)
	say := func(line string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(out, line)
		_ = out.Flush()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		typed := bufio.NewScanner(os.Stdin)
		for typed.Scan() {
			say("typed " + typed.Text())
		}
	}()
	pace, err := time.ParseDuration(os.Getenv(paceVariable))
	if err != nil {
		pace = 100 * time.Millisecond
	}
	ticker := time.NewTicker(pace)
	for i := 1; ; i++ {
		select {
		case <-ended:
			say(fmt.Sprint("end ", i-1))
			os.Exit(5)
		case <-ticker.C:
			say(fmt.Sprint(i, " ", strings.Repeat("x", i%50)))
		}
	}
}

// lines calls f with each whole line that is written to it.
type lines struct {
	rest []byte
	f    func(line string)
}

func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		l.f(string(line))
		l.rest = rest
	}
}
