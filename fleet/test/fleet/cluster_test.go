//go:build linux

package fleet

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
)

// TestCluster has a cluster of three gateways fail in all ways, again and again, while
// sessions stream and type: a gateway is killed, and the network between two of them is cut,
// with resets and without a word. No line is lost or comes twice, every process ends as it
// did, and the sessions recover soon.
func TestCluster(t *testing.T) {
	t.Parallel()
	s := newStreaming(t, int(testkit.Number(t, "FLEET_SESSIONS", 20)))
	// Whoever was at the node that was killed is at the others now, so these are cut from each
	// other.
	victim, one, other := 0, 0, 0
	faults := []struct {
		what          string
		lasts         time.Duration // once it is known; in all longer than a connection may be silent
		begin, ending func()
	}{
		{
			"a gateway is killed", time.Second,
			func() { s.nodes[victim].kill(t) },
			func() { s.nodes[victim].start(t) },
		},
		{
			"the network between two is silent", 2 * time.Second,
			func() { s.cut(one, other, testkit.LinkSilent) },
			func() { s.network.between(one, other, testkit.LinkOpen) },
		},
		{
			"the network between two resets connections", 5 * time.Second,
			func() { s.cut(one, other, testkit.LinkRefused) },
			func() { s.network.between(one, other, testkit.LinkOpen) },
		},
	}
	most := time.Duration(testkit.Number(t, "FLEET_SECONDS", 0)) * time.Second
	of := make([]outages, len(faults))
	counts := make([]int, len(faults))
	for i, begun := 0, time.Now(); i < 2 || time.Since(begun) < most; i++ {
		fault := faults[i%len(faults)]
		if i%len(faults) == 0 {
			victim = rand.IntN(len(s.nodes))
			one, other = (victim+1)%len(s.nodes), (victim+2)%len(s.nodes)
		}
		s.whole()
		time.Sleep(time.Second) // sessions stream meanwhile
		s.outages.Store(&of[i%len(faults)])
		counts[i%len(faults)]++
		fault.begin()
		time.Sleep(fault.lasts) // they do without it
		fault.ending()
	}
	s.end()
	for i, fault := range faults {
		if counts[i] == 0 {
			continue // the short form leaves it out
		}
		of[i].report(t, fmt.Sprintf("%s (%d times)", fault.what, counts[i]))
	}
}

// streaming is sessions that stream and type, at a cluster of three gateways that is behind a
// load balancer and has TLS on its routes.
type streaming struct {
	t        *testing.T
	nodes    []*node
	network  *network
	outages  atomic.Pointer[outages]
	over     chan struct{}
	stop     func() // closes over
	sessions sync.WaitGroup
}

func newStreaming(t *testing.T, sessions int) *streaming {
	const machines = 8
	s := &streaming{t: t, nodes: newNodes(t, 3), over: make(chan struct{})}
	s.stop = sync.OnceFunc(func() { close(s.over) })
	s.outages.Store(new(outages))
	s.network = newNetwork(t, s.nodes)
	args := append(routesWithTLS(testkit.NewAuthority(t, "ours")), "--cluster-advertise", s.network.bypass.Address())
	startCluster(t, s.nodes, s.network.route, args...)
	for i := range machines {
		join(t, s.nodes, fmt.Sprint("box-", i))
	}
	addresses := make([]string, len(s.nodes))
	for i, n := range s.nodes {
		addresses[i] = n.client
	}
	f := newFront(t, addresses...)
	for i := range sessions {
		s.sessions.Go(func() {
			if err := runSession(t, f.url()+fmt.Sprint("/env/box-", i%machines), &s.outages, s.over); err != nil {
				t.Errorf("session %d: %v", i, err)
			}
		})
	}
	t.Cleanup(func() { // also if the test fails
		s.stop()
		s.sessions.Wait()
	})
	return s
}

// routesEach is how many connections a node of three has to the others: NATS makes three to
// each, and one more for its own messages.
const routesEach = 2 * 4

// routes returns how many connections a node has to others.
func routes(n *node) (count int, err error) {
	browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := browser.Get("http://" + n.client + "/metrics")
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(text), "\nexec_gateway_nats_routes ")
	if !ok {
		return 0, fmt.Errorf("no routes in %s", text)
	}
	_, err = fmt.Sscan(rest, &count)
	return count, err
}

// whole waits until all nodes are connected with each other.
func (s *streaming) whole() {
	s.t.Helper()
	for i, n := range s.nodes {
		testkit.WaitFor(s.t, testkit.Patience, func() error {
			if count, err := routes(n); count < routesEach {
				return fmt.Errorf("node %d has %d connections to others, %v", i, count, err)
			}
			return nil
		})
	}
}

// cut cuts the network between two nodes, and waits until both know it.
func (s *streaming) cut(a, b int, state testkit.LinkState) {
	s.t.Helper()
	begun := time.Now()
	s.network.between(a, b, state)
	for _, i := range []int{a, b} {
		testkit.WaitFor(s.t, testkit.Patience, func() error {
			if count, err := routes(s.nodes[i]); count > routesEach/2 || err != nil {
				return fmt.Errorf("node %d has %d connections to others, %v", i, count, err)
			}
			return nil
		})
	}
	s.t.Logf("the nodes %d and %d know after %v that there is no network between them", a, b, time.Since(begun).Round(time.Millisecond))
}

// end ends the sessions.
func (s *streaming) end() {
	s.stop()
	testkit.Within(s.t, "the end of the sessions", s.sessions.Wait)
}

var errNotYet = errors.New("not every session has recovered yet")

// outages are the times for which sessions had no connection, and those for which nothing
// came, which begin before anybody knows that a connection is broken.
type outages struct {
	mu               sync.Mutex
	recovered, quiet []time.Duration
	broken           int // connections
	streaming        int // sessions that have streamed something
}

func (o *outages) add(to *[]time.Duration, d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*to = append(*to, d)
}

// begin counts a connection that broke.
func (o *outages) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.broken++
}

// streams counts a session that streams.
func (o *outages) streams() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.streaming++
}

// allStream waits until sessions stream.
func (o *outages) allStream(t *testing.T, sessions int) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.streaming < sessions {
			return fmt.Errorf("%d of %d sessions stream", o.streaming, sessions)
		}
		return nil
	})
}

func (o *outages) begun() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.broken
}

func (o *outages) sorted() []time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(slices.Values(o.recovered))
}

// report says how long sessions had no connection, and how long nothing came. On a machine
// that has the time ($FLEET_STRICT is 1), the first is at most 5 s at the 99th percentile.
func (o *outages) report(t *testing.T, after string) {
	t.Helper()
	all := o.sorted()
	if len(all) == 0 {
		t.Logf("%s: no connection broke", after)
		return
	}
	slices.Sort(o.quiet)
	p99, quiet := nearest(all, 99), time.Duration(0)
	if len(o.quiet) > 0 {
		quiet = nearest(o.quiet, 99)
	}
	t.Logf("%s: %d recoveries, median %v, p99 %v, longest %v; nothing came %d times, for %v at the 99th percentile",
		after, len(all), nearest(all, 50), p99, all[len(all)-1], len(o.quiet), quiet)
	if p99 > 5*time.Second && testkit.Number(t, "FLEET_STRICT", 0) == 1 {
		t.Errorf("p99 of the recoveries is %v", p99)
	}
}

// nearest returns a percentile of sorted times.
func nearest(all []time.Duration, percent int) time.Duration {
	return all[(len(all)-1)*percent/100].Round(time.Millisecond)
}

// checker checks the lines of a writer.
type checker struct {
	mu           sync.Mutex
	lines, typed int
	end          string
	err          error
	last         time.Time // when a line came
	first        func()    // is called when the first line comes
	quiet        func(time.Duration)
}

func (c *checker) line(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.last.IsZero() {
		c.first()
	} else if pause := now.Sub(c.last); pause > time.Second {
		c.quiet(pause)
	}
	c.last = now
	want := ""
	switch {
	case strings.HasPrefix(text, "end "):
		c.end, want = text, fmt.Sprint("end ", c.lines)
	case strings.HasPrefix(text, "typed "):
		c.typed++
		want = fmt.Sprint("typed ", c.typed)
	default:
		c.lines++
		want = fmt.Sprint(c.lines, " ", strings.Repeat("x", c.lines%50))
	}
	if text != want && c.err == nil {
		c.err = fmt.Errorf("line %q came, want %q", text, want)
	}
}

// runSession runs a writer, types to it until over is closed, and checks what comes.
func runSession(t *testing.T, url string, of *atomic.Pointer[outages], over <-chan struct{}) error {
	var broke time.Time
	env, err := dialPatiently(t, url, &client.Options{OnState: func(s client.State) {
		switch s.Kind {
		case client.Recovering:
			broke = s.Since
			of.Load().begin()
		case client.Connected:
			now := of.Load()
			now.add(&now.recovered, s.Since.Sub(broke))
		}
	}})
	if err != nil {
		return err
	}
	defer env.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	command := env.Command(t.Context(), self)
	command.Env = []string{roleVariable + "=writer", paceVariable + "=" + os.Getenv(paceVariable)}
	c := checker{first: func() { of.Load().streams() }, quiet: func(d time.Duration) {
		now := of.Load()
		now.add(&now.quiet, d)
	}}
	command.Stdout = &lines{f: c.line}
	in, err := command.StdinPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	typed := typing(in, over)
	ended := command.Wait()
	if exit, ok := errors.AsType[*client.ExitError](ended); !ok || exit.ExitCode != 5 {
		return fmt.Errorf("it ended with %w", ended)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch n := <-typed; {
	case c.err != nil:
		return c.err
	case c.end == "":
		return errors.New("the last line is missing")
	case c.typed != n:
		return fmt.Errorf("%d lines were typed, and %d came back", n, c.typed)
	}
	return nil
}

// typing types numbered lines until over is closed, and then tells how many.
func typing(in io.WriteCloser, over <-chan struct{}) <-chan int {
	typed := make(chan int, 1)
	go func() {
		defer in.Close()
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for n := 0; ; {
			select {
			case <-over:
				typed <- n
				return
			case <-ticker.C:
			}
			if _, err := fmt.Fprintln(in, n+1); err != nil {
				typed <- n
				return
			}
			n++
		}
	}()
	return typed
}

// dialPatiently dials until the cluster knows its machines.
func dialPatiently(t *testing.T, url string, opts *client.Options) (env *client.Environment, err error) {
	deadline := time.Now().Add(testkit.Patience)
	for {
		env, err = client.Dial(t.Context(), url, opts)
		if err == nil || time.Now().After(deadline) {
			return env, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}
