package page

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/fleet/internal/fleet"
	"execserver/fleet/natstransport"
	"execserver/internal/testkit"
	srv "execserver/server"
)

// crowdToken lets each machine of a crowd join. To make a token for each would take longer.
const crowdToken = "the token of a crowd"

// serveCrowd starts a gateway as serveGateway does, for a crowd.
func serveCrowd(t *testing.T) *gateway {
	machines := filepath.Join(t.TempDir(), "machines")
	must(t, os.WriteFile(machines, fmt.Appendf(nil, "[[machine]]\nname = \"m-*\"\nsha256 = \"%x\"\n", sha256.Sum256([]byte(crowdToken))), 0o600))
	return serveGateway(t, "--machines", machines)
}

// crowd is many machines in this process, each with a connection to NATS of its own, and one
// server behind them all.
type crowd struct {
	t      *testing.T
	g      *gateway
	server *srv.Server
	end    context.Context
	work   sync.WaitGroup
}

func (g *gateway) crowd() *crowd {
	g.t.Helper()
	end, cancel := context.WithCancel(context.Background())
	c := &crowd{t: g.t, g: g, server: srv.New(&srv.Options{Auth: srv.Unauthenticated}), end: end}
	g.t.Cleanup(func() {
		cancel()
		c.work.Wait()
		testkit.Shutdown(g.t, c.server)
	})
	return c
}

// calm is a heartbeat that leaves the processors of a small machine to the page.
const calm = 6 * time.Second

// member is a machine as one of a large fleet describes itself.
func member(i int) fleet.Member {
	labels := map[string]string{
		"rack": fmt.Sprint("r-", i%120), "zone": fmt.Sprint("zone-", i%3), "number": fmt.Sprint(i),
		"owner": fmt.Sprintf("team-%d@example.com", i%40), "kernel": "6.12.48-deb13-cloud-amd64", "tier": "spot", "env": "production",
		"project": "simulation of weather", "gpu": "none", "disk": "nvme", "image": "2026-11-03", "region": "eu-central-1",
	}
	return fleet.Member{
		Name: fmt.Sprint("m-", i), Host: fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/250, i%250), Labels: labels,
		Version: "1.0.0", System: "linux/amd64", Sandbox: "auto",
	}
}

// join connects machines to NATS and has them join, and calls each with a machine that has.
func (c *crowd) join(from, count int, each func(nc *nats.Conn, m fleet.Member, opts fleet.JoinOptions, joined *fleet.Membership)) {
	c.t.Helper()
	places := make(chan struct{}, 20)
	var joining sync.WaitGroup
	for i := from; i < from+count; i++ {
		places <- struct{}{}
		joining.Add(1)
		c.work.Go(func() {
			m := member(i)
			opts := fleet.JoinOptions{
				Log: slog.New(slog.DiscardHandler), Heartbeat: calm, Drain: func() {},
				Serve: func(conn *natstransport.Conn) { _ = c.server.ServeFor(conn, conn.Hello()) },
				Load: func() fleet.Load {
					return fleet.Load{Sessions: i % 7, Processes: rand.IntN(9), Capacity: 64, Draining: i%50 == 49}
				},
			}
			nc, err := nats.Connect(c.g.fleet, nats.UserInfo(m.Name, crowdToken), nats.CustomInboxPrefix(fleet.InboxPrefix(m.Name)), nats.Timeout(20*time.Second))
			if err != nil {
				c.t.Errorf("connect %s: %v", m.Name, err)
				<-places
				joining.Done()
				return
			}
			defer nc.Close()
			joined, err := fleet.Join(c.end, nc, m, opts)
			<-places
			joining.Done()
			if err != nil {
				c.t.Errorf("join %s: %v", m.Name, err)
				return
			}
			each(nc, m, opts, joined)
		})
	}
	joining.Wait()
}

// stay keeps a machine until the test ends.
func (c *crowd) stay(_ *nats.Conn, _ fleet.Member, _ fleet.JoinOptions, joined *fleet.Membership) {
	<-c.end.Done()
	joined.Close()
}

// comeAndGo has a machine leave, and come back, for about a second each.
func (c *crowd) comeAndGo(nc *nats.Conn, m fleet.Member, opts fleet.JoinOptions, joined *fleet.Membership) {
	pause := func() {
		select {
		case <-c.end.Done():
		case <-time.After(500*time.Millisecond + rand.N(time.Second)):
		}
	}
	for c.end.Err() == nil {
		pause()
		joined.Close()
		pause()
		var err error
		if joined, err = fleet.Join(c.end, nc, m, opts); err != nil {
			if c.end.Err() == nil {
				c.t.Errorf("join %s again: %v", m.Name, err)
			}
			return
		}
	}
	joined.Close()
}

// TestFleetOfThousands is what a person does who looks for a machine among 3,000 while 300 of
// them come and go. QUIET_MACHINE=1 holds what a person waits against 100 ms.
func TestFleetOfThousands(t *testing.T) {
	all := int(testkit.Number(t, "PAGE_MACHINES", 3000))
	g := serveCrowd(t)
	c := g.crowd()
	began := time.Now()
	c.join(0, all-all/10, c.stay)
	c.join(all-all/10, all/10, c.comeAndGo)
	t.Logf("%d machines have joined after %s", all, time.Since(began).Round(time.Second))
	b := browse(t)
	b.open(g.link("ann"))
	b.shows(".fleet .bar", "1 to 100 are shown")
	const names = `[...document.querySelectorAll(".machines a")].map((a) => a.textContent)`
	if first := value[string](b, names+`.slice(0, 12).join(" ")`); first != "m-0 m-1 m-2 m-3 m-4 m-5 m-6 m-7 m-8 m-9 m-10 m-11" {
		t.Errorf("the list begins with %s", first)
	}
	b.picture("25-thousands")
	value[bool](b, `(() => {
		window.slow = []; window.tasks = [];
		new PerformanceObserver((list) => { for (const e of list.getEntries()) slow.push(e.duration); }).observe({ type: "event", durationThreshold: 16 });
		new PerformanceObserver((list) => { for (const e of list.getEntries()) tasks.push(e.duration); }).observe({ type: "longtask" });
		return true;
	})()`)

	// The filter finds a machine by its name, by a label and by its state, wherever it is.
	filter := func(text string) {
		t.Helper()
		value[bool](b, `(document.querySelector("#filter").focus(), document.querySelector("#filter").select(), true)`)
		for _, r := range text {
			b.press(string(r))
			time.Sleep(50 * time.Millisecond) // a person who types quickly
		}
	}
	filter(fmt.Sprint("m-", all/2+1))
	b.until("one machine is found by its name", names+fmt.Sprintf(`.join() === "m-%d"`, all/2+1))
	filter("rack=r-77 zone=zone-2 ")
	b.until("machines are found by labels", fmt.Sprintf(`%s.slice(0, 3).join() === "m-77,m-197,m-317"`, names))
	filter("draining")
	b.until("draining ones are found", `document.querySelectorAll(".machines li.draining").length > 10 && !document.querySelector(".machines li.serving")`)
	b.picture("26-draining")
	// So does a label that one chooses, and it stays when one comes back.
	filter(" ")
	b.click(".machines .label", "rack=r-5")
	b.until("the label is chosen", fmt.Sprintf(`%s.slice(0, 3).join() === "m-5,m-125,m-245"`, names))
	b.click(".bar .label", "rack=r-5")

	// Some time of this leaves nothing behind, and a person who types waits for nothing.
	for end := time.Now().Add(time.Duration(testkit.Number(t, "PAGE_SECONDS", 15)) * time.Second); time.Now().Before(end); {
		filter(fmt.Sprint("m-", rand.IntN(all)))
	}
	filter(" ")
	slow := value[[]float64](b, "slow.sort((a, b) => b - a)")
	tasks := value[[]float64](b, "tasks.sort((a, b) => b - a)")
	elements := value[int](b, `document.querySelectorAll("*").length`)
	value[bool](b, `(window.gc?.(), true)`)
	heap := value[float64](b, "performance.memory.usedJSHeapSize") / (1 << 20)
	over := 0
	for _, ms := range slow {
		if ms >= 100 {
			over++
		}
	}
	t.Logf("%d events of 16 ms or more from input to paint, the slowest %.0f ms, %d of 100 ms or more; the longest tasks %.0f ms; %d elements, %.0f MiB; the gateway %d MiB",
		len(slow), first(slow), over, tasks[:min(5, len(tasks))], elements, heap, g.resident()>>20)
	if os.Getenv("QUIET_MACHINE") != "" && over > 0 {
		t.Errorf("%d events took 100 ms or more from input to paint", over)
	}
	if elements > 10_000 {
		t.Errorf("the page has %d elements", elements)
	}
	if heap > 150 {
		t.Errorf("the page uses %.0f MiB", heap)
	}

	// The keyboard goes from machine to machine, through all of them.
	b.until("all are listed again", names+`[1] === "m-1"`)
	value[bool](b, `(document.querySelector(".machines a").focus(), true)`)
	last := value[int](b, `document.querySelectorAll(".machines li").length`)
	for range last {
		b.pressKey("ArrowDown", 40)
	}
	b.until("the next machine has the focus", fmt.Sprintf(`document.activeElement.textContent === "m-%d"`, last))
	b.pressKey("ArrowUp", 38)
	b.until("the one before has the focus", fmt.Sprintf(`document.activeElement.textContent === "m-%d"`, last-1))
	b.click(".turns button", "›")
	b.until("the second part is shown", names+fmt.Sprintf(`[0] === "m-%d"`, last))
	b.click(".turns button", "‹")
	b.until("the first part is shown", names+`[0] === "m-0"`)

	// On a phone nothing is wider than it, and what one filters with stays in reach.
	b.as(phone)
	value[bool](b, `(document.querySelector(".machines li:last-child").scrollIntoView(), true)`)
	b.until("nothing is wider than the phone", `document.documentElement.scrollWidth <= innerWidth`)
	b.until("the filter is in view", `scrollY > innerHeight && (({ top, bottom }) => top >= 0 && bottom <= innerHeight)(document.querySelector("#filter").getBoundingClientRect())`)
	b.picture("27-thousands-below")
	b.as(light)

	// A machine is there, and its page too.
	filter(fmt.Sprint("m-", all/3))
	b.until("it is found", names+fmt.Sprintf(`.includes("m-%d")`, all/3))
	b.press("\t")
	b.until("a link has the focus", `document.activeElement.matches(".machines a")`)
	b.press("\r")
	b.connected()
	b.clean()
}

func first(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	return list[0]
}
