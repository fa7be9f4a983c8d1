//go:build linux

package fleet

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
)

// TestCluster kills the gateways of a cluster of three, one after the other, again and
// again, while sessions stream and type. No line is lost or comes twice, every process ends
// as it did, and the sessions recover soon.
func TestCluster(t *testing.T) {
	sessions, seconds := testkit.Number(t, "FLEET_SESSIONS", 20), testkit.Number(t, "FLEET_SECONDS", 15)
	const machines = 4
	nodes := cluster(t, 3)
	for i := range machines {
		join(t, nodes, fmt.Sprint("box-", i))
	}
	addresses := make([]string, len(nodes))
	for i, n := range nodes {
		addresses[i] = n.client
	}
	f := newFront(t, addresses...)
	var recovered outages
	over := make(chan struct{})
	var wg sync.WaitGroup
	for i := range sessions {
		wg.Go(func() {
			if err := runSession(t, f.url()+fmt.Sprint("/env/box-", i%machines), &recovered, over); err != nil {
				t.Errorf("session %d: %v", i, err)
			}
		})
	}
	kills := 0
	for deadline := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(deadline); kills++ {
		victim := nodes[rand.IntN(len(nodes))]
		time.Sleep(2 * time.Second) // sessions stream meanwhile
		victim.kill(t)
		time.Sleep(time.Second) // they do without it
		victim.start(t)
	}
	close(over)
	testkit.Within(t, "the end of the sessions", wg.Wait)
	all := recovered.sorted()
	if len(all) == 0 {
		t.Fatal("no connection broke")
	}
	p99 := all[(len(all)-1)*99/100]
	t.Logf("%d sessions, %d kills: %d recoveries, median %v, p99 %v, longest %v", sessions, kills, len(all), all[len(all)/2], p99, all[len(all)-1])
	if p99 > 5*time.Second {
		t.Errorf("p99 of the recoveries is %v", p99)
	}
}

var errNotYet = errors.New("not every session has recovered yet")

// outages are the times for which sessions had no connection.
type outages struct {
	mu  sync.Mutex
	all []time.Duration
}

func (o *outages) add(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, d)
}

func (o *outages) sorted() []time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(slices.Values(o.all))
}

// checker checks the lines of a writer.
type checker struct {
	mu           sync.Mutex
	lines, typed int
	end          string
	err          error
}

func (c *checker) line(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
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
func runSession(t testing.TB, url string, recovered *outages, over <-chan struct{}) error {
	var broke time.Time
	env, err := dialPatiently(t, url, &client.Options{OnState: func(s client.State) {
		switch s.Kind {
		case client.Recovering:
			broke = s.Since
		case client.Connected:
			recovered.add(s.Since.Sub(broke))
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
	command.Env = []string{roleVariable + "=writer"}
	var c checker
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
func dialPatiently(t testing.TB, url string, opts *client.Options) (env *client.Environment, err error) {
	deadline := time.Now().Add(testkit.Patience)
	for {
		env, err = client.Dial(t.Context(), url, opts)
		if err == nil || time.Now().After(deadline) {
			return env, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}
