//go:build linux

package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/client"
	"execserver/fleet/internal/fleet"
	"execserver/fleet/natstransport"
	"execserver/internal/testkit"
	"execserver/server"
)

// gateway starts one gateway for machines that have the token.
func gateway(t *testing.T, flags ...string) *node {
	t.Helper()
	n := &node{client: testkit.FreeAddress(t), fleet: testkit.FreeAddress(t)}
	n.tokens = !slices.Contains(flags, "--machines")
	args := []string{"gateway", "--listen", "ws://" + n.client, "--fleet-listen", "nats://" + n.fleet}
	if !slices.Contains(flags, "--data") {
		args = append(args, "--data", t.TempDir())
	}
	n.program = start(t, append(args, flags...)...)
	return n
}

// rss returns the resident memory of a process in bytes.
func rss(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// list returns the machines that a gateway lists. It does not answer so as long as it does not
// know them.
func list(n *node) (machines []fleet.Member, err error) {
	browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := browser.Get("http://" + n.client + "/fleet")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, errors.New("the gateway answers " + answer.Status)
	}
	err = json.NewDecoder(answer.Body).Decode(&machines)
	return machines, err
}

// listed waits until a gateway lists a number of machines, and returns how long it took.
func listed(t *testing.T, n *node, count int) time.Duration {
	t.Helper()
	start := time.Now()
	testkit.WaitFor(t, 2*testkit.Patience, func() error {
		if got, err := list(n); err != nil || len(got) != count {
			return fmt.Errorf("%d machines are listed, %v, want %d", len(got), err, count)
		}
		return nil
	})
	return time.Since(start)
}

// joinMany is a program that is many machines, each with a connection to NATS of its own,
// and one server behind them all. It says when all have joined.
func joinMany() {
	url, from, count := os.Args[1], number(os.Args[2]), number(os.Args[3])
	srv := server.New(&server.Options{Auth: server.Unauthenticated})
	var wg sync.WaitGroup
	places := make(chan struct{}, 20)
	for i := from; i < from+count; i++ {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			name := fmt.Sprint("m-", i)
			nc, err := nats.Connect(url, nats.UserInfo(name, token), nats.CustomInboxPrefix(fleet.InboxPrefix(name)), nats.Timeout(20*time.Second))
			if err == nil {
				_, err = fleet.Join(context.Background(), nc, fleet.Member{Name: name, Labels: map[string]string{"n": name}}, fleet.JoinOptions{
					Log:   slog.New(slog.NewTextHandler(os.Stderr, nil)),
					Serve: func(c *natstransport.Conn) { _ = srv.ServeFor(c, c.Hello()) },
					Load:  func() fleet.Load { return fleet.Load{Capacity: 10} },
					Drain: func() {},
				})
			}
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		})
	}
	wg.Wait()
	fmt.Println("joined")
	select {}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

// machines starts a program that is many machines.
func machines(t *testing.T, n *node, from, count int) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "nats://"+n.fleet, strconv.Itoa(from), strconv.Itoa(count))
	cmd.Env = append(os.Environ(), roleVariable+"=machines")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "joined\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return cmd
}

// TestMany joins many machines. It measures what an idle one costs the gateway, how soon a
// quarter of them that vanish are not listed any more, and how long a start takes at any of
// them, beside a start without a fleet. With a thousand or more, as on a quiet machine, it holds
// them to bounds.
func TestMany(t *testing.T) {
	runtime.LockOSThread() // the programs die with the thread that starts them
	defer runtime.UnlockOSThread()
	all := int(testkit.Number(t, "FLEET_MACHINES", 200))
	n := gateway(t, "--machines", machinesFile(t))
	before := rss(t, n.cmd.Process.Pid)
	vanish := machines(t, n, 0, all/4)
	machines(t, n, all/4, all-all/4)
	listed(t, n, all)
	steady := time.NewTimer(2 * fleet.DefaultHeartbeat)
	<-steady.C // heartbeats have come from all
	each := (rss(t, n.cmd.Process.Pid) - before) / int64(all)
	t.Logf("%d machines: the gateway has %d MiB, %d bytes for each machine", all, rss(t, n.cmd.Process.Pid)>>20, each)
	if all >= 1000 && each > 130_000 { // with few, the first ones pay for what all share
		t.Errorf("an idle machine costs %d bytes", each)
	}

	direct := newDirect(t)
	without, with := starts(t, 100, direct, func(i int) string { return fmt.Sprintf("ws://%s/env/m-%d", n.client, all/4+i*7%(all-all/4)) })
	t.Logf("a start at the median: %v directly, %v at any of the machines", without, with)
	if all >= 1000 && with > without+5*time.Millisecond {
		t.Errorf("a start takes %v, and %v without the fleet", with, without)
	}

	if err := vanish.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	took := listed(t, n, all-all/4)
	t.Logf("%d machines that vanished were not listed any more after %v", all/4, took)
	if all >= 1000 && took > 10*time.Second {
		t.Errorf("it took %v until vanished machines were not listed", took)
	}
}

// newDirect starts a server without a fleet.
func newDirect(t *testing.T) string {
	t.Helper()
	address := testkit.FreeAddress(t)
	start(t, "serve", "--listen", "ws://"+address, "--without=cgroups")
	return "ws://" + address
}

// starts returns the medians of the time to run a short command, over an open connection, at a
// server and at machines. They take turns, so that whatever else the machine does is fair to both.
func starts(t *testing.T, n int, direct string, machine func(i int) string) (without, with time.Duration) {
	t.Helper()
	var atServer, atMachines []time.Duration
	for i := range n {
		atServer = append(atServer, startsAt(t, direct)...)
		atMachines = append(atMachines, startsAt(t, machine(i))...)
	}
	slices.Sort(atServer)
	slices.Sort(atMachines)
	return atServer[n*3/2], atMachines[n*3/2]
}

// startsAt returns the times of three starts over one connection.
func startsAt(t *testing.T, url string) (all []time.Duration) {
	t.Helper()
	env, err := client.Dial(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close()
	for range 3 {
		start := time.Now()
		if err := env.Command(t.Context(), "true").Run(); err != nil {
			t.Fatal(err)
		}
		all = append(all, time.Since(start))
	}
	return all
}
