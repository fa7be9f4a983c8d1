package client_test

import (
	"fmt"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
)

// TestUsage has one process use the processor while another one sleeps, and then leaves a
// child behind.
func TestUsage(t *testing.T) {
	t.Parallel()
	env := dialed(t, serveWebSocket(t, nil), nil)
	ctx := background(t)
	busy := env.Command(ctx, "/bin/sh", "-c", "(while :; do :; done) & wait")
	idle := env.Command(ctx, "/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 & read line")
	stdin, err := idle.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*client.Cmd{busy, idle} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	var used map[string]client.ProcessUsage
	read := func(ask func() ([]client.ProcessUsage, error)) {
		t.Helper()
		list, err := ask()
		if err != nil {
			t.Fatal(err)
		}
		used = make(map[string]client.ProcessUsage)
		for _, u := range list {
			used[u.ID] = u
		}
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		read(func() ([]client.ProcessUsage, error) { return env.AllUsage(ctx) })
		b, i := used[busy.Process.ID], used[idle.Process.ID]
		if b.CPU < 100*time.Millisecond || b.Processes != 2 || i.Processes != 2 || b.Memory < 100<<10 || i.Memory < 100<<10 {
			return fmt.Errorf("busy %+v, idle %+v", b, i)
		}
		if b.Session != env.Session() || i.CPU >= b.CPU {
			t.Fatalf("busy %+v, idle %+v", b, i)
		}
		return nil
	})
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	_ = idle.Wait() // the end of input ends read with a failure
	_ = busy.Process.Terminate(ctx, 0)
	_ = busy.Wait()
	testkit.WaitFor(t, testkit.Patience, func() error {
		read(func() ([]client.ProcessUsage, error) { return env.Usage(ctx) })
		if len(used) != 1 || used[idle.Process.ID].Processes != 1 || used[idle.Process.ID].Session != "" {
			return fmt.Errorf("%+v", used)
		}
		return nil
	})
}
