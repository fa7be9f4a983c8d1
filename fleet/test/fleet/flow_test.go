//go:build linux

package fleet

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
)

// TestThroughput reads the output of a command through a gateway and without one.
func TestThroughput(t *testing.T) {
	bytes := int64(testkit.Number(t, "FLEET_BYTES", 200_000_000))
	n := gateway(t)
	join(t, []*node{n}, "box")
	direct, through := newDirect(t), "ws://"+n.client+"/env/box"
	var without, with []float64
	for range 5 {
		without, with = append(without, rate(t, direct, bytes)), append(with, rate(t, through, bytes))
	}
	slices.Sort(without)
	slices.Sort(with)
	t.Logf("%.0f MB/s directly, %.0f MB/s through a gateway: %.2f", without[2], with[2], with[2]/without[2])
}

// rate returns the MB of output that come from a machine in a second.
func rate(t *testing.T, url string, bytes int64) float64 {
	t.Helper()
	env, err := dialPatiently(t, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close()
	command := env.Command(t.Context(), "head", "-c", fmt.Sprint(bytes), "/dev/zero")
	var got counter
	command.Stdout = &got
	start := time.Now()
	if err := command.Run(); err != nil || got.n.Load() != bytes {
		t.Fatalf("%d bytes, %v", got.n.Load(), err)
	}
	return float64(bytes) / 1e6 / time.Since(start).Seconds()
}

type counter struct{ n atomic.Int64 }

func (c *counter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return len(b), nil
}

// TestStalledReader lets clients not read what commands write without end. No hop keeps it:
// neither the gateway nor the machine grows, the commands block, and the keys that somebody
// else types at the same machine come back soon.
func TestStalledReader(t *testing.T) {
	const stalled = 20
	n := gateway(t)
	m := join(t, []*node{n}, "box")
	url := "ws://" + n.client + "/env/box"
	quiet, err := dialPatiently(t, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer quiet.Close()
	typing := newTypist(t, quiet)
	idle := typing.p99(t)
	gatewayBefore, machineBefore := rss(t, n.cmd.Process.Pid), rss(t, m.cmd.Process.Pid)
	release := make(chan struct{})
	for range stalled {
		env, err := client.Dial(t.Context(), url, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer env.Close()
		command := env.Command(t.Context(), "cat", "/dev/zero")
		command.Stdout = stall{release}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
	}
	defer close(release)
	var gatewayMost, machineMost int64
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		gatewayMost, machineMost = max(gatewayMost, rss(t, n.cmd.Process.Pid)), max(machineMost, rss(t, m.cmd.Process.Pid))
	}
	busy := typing.p99(t)
	t.Logf("%d stalled readers: the gateway grew by %d MiB, the machine by %d MiB; p99 of keys %v, and %v before",
		stalled, (gatewayMost-gatewayBefore)>>20, (machineMost-machineBefore)>>20, busy, idle)
	if grown := gatewayMost - gatewayBefore; grown > stalled*8<<20 {
		t.Errorf("the gateway grew by %d bytes", grown)
	}
	if busy > 10*time.Millisecond && testkit.Number(t, "FLEET_STRICT", 0) == 1 {
		t.Errorf("p99 of keys is %v", busy)
	}
}

// stall is a writer that blocks.
type stall struct{ release <-chan struct{} }

func (s stall) Write([]byte) (int, error) {
	<-s.release
	return 0, os.ErrClosed
}

// typist types at a program that echoes.
type typist struct {
	in  io.Writer
	out chan string
}

func newTypist(t *testing.T, env *client.Environment) *typist {
	t.Helper()
	command := env.Command(t.Context(), "cat")
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &typist{in: in, out: make(chan string, 1)}
	command.Stdout = &lines{f: func(line string) { p.out <- line }}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = command.Wait()
	})
	return p
}

// p99 types keys, and returns the time in which 99 of 100 came back.
func (p *typist) p99(t *testing.T) time.Duration {
	t.Helper()
	var all []time.Duration
	for i := range 300 {
		start := time.Now()
		if _, err := fmt.Fprintln(p.in, i); err != nil {
			t.Fatal(err)
		}
		if got := <-p.out; got != fmt.Sprint(i) {
			t.Fatalf("%q came back for %d", got, i)
		}
		all = append(all, time.Since(start))
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}
