//go:build linux

package slopes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"execserver/internal/testclient"
	"execserver/internal/testkit"
	"execserver/process"
	"execserver/protocol"
	"execserver/server"
	"execserver/session"
)

const (
	atOnce    = 8  // commands at the same time
	samples   = 50 // of a run
	remembers = 256
	patience  = time.Minute
)

// kinds are the kinds of commands.
var kinds = []struct {
	name, script string
	tty          bool
	terminate    bool
	code         int
}{
	{name: "echo", script: "echo hello"},
	{name: "exit code", script: "exit 3", code: 3},
	{name: "background", script: "sleep .1 >/dev/null 2>&1 </dev/null &"},
	{name: "daemon", script: "setsid sleep .1 >/dev/null 2>&1 </dev/null &"},
	{name: "terminal", script: "echo hello", tty: true},
	{name: "killed", script: "kill -9 $$", code: 128 + 9},
	{name: "terminated", script: "sleep 1000 & wait", terminate: true, code: 128 + 9},
	{name: "large output", script: "head -c 200000 /dev/zero"},
	{name: "late writer", script: "(sleep .05; echo late) &"},
}

// run is one run of many commands against a server in this program.
type run struct {
	t      *testing.T
	url    string
	groups string
	begun  time.Time

	mu      sync.Mutex
	starts  []time.Duration // since the last sample
	samples []sample
	done    int
	every   int
}

// sample is what there is at one moment.
type sample struct {
	commands    int
	descriptors int
	groups      int
	goroutines  int
	rss, heap   float64 // MiB
	start       float64 // ms, the median since the sample before
}

func newRun(t *testing.T, o *process.Ownership, groups string) *run {
	srv := server.New(&server.Options{Session: session.Options{
		Ownership: o, DetachedTTL: time.Second, MaxClosed: remembers,
	}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.ServeWebSocket(l)
	t.Cleanup(func() { testkit.Shutdown(t, srv, patience) })
	return &run{t: t, url: "ws://" + l.Addr().String(), groups: groups, begun: time.Now()}
}

// all runs commands in sessions of some each. A run of one session has all in it.
func (r *run) all(commands, perSession int) {
	r.every = max(1, commands/samples)
	var next atomic.Int64
	take := func() (n int, ok bool) { n = int(next.Add(1)); return n, n <= commands }
	if perSession == commands {
		c := r.dial()
		defer c.Drop()
		var wg sync.WaitGroup
		for range atOnce {
			wg.Go(func() {
				for n, ok := take(); ok && !r.t.Failed(); n, ok = take() {
					r.command(c, n)
				}
			})
		}
		wg.Wait()
		return
	}
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for more := true; more && !r.t.Failed(); {
				c := r.dial()
				for range perSession {
					n, ok := take()
					if more = ok; !more {
						break
					}
					r.command(c, n)
				}
				c.Drop()
			}
		})
	}
	wg.Wait()
}

// client is one connection, and the commands that run over it.
type client struct {
	*testclient.Conn
	mu      sync.Mutex
	running map[string]*command
}

type command struct {
	last   uint64
	code   int
	closed chan error
}

func (r *run) dial() *client {
	c := &client{running: make(map[string]*command)}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ready := make(chan struct{})
	conn, err := testclient.Dial(ctx, r.url, testclient.Options{
		Asks: protocol.ClientCapabilities{ProcessAck: true},
		Notify: func(method string, params json.RawMessage) {
			<-ready
			c.take(method, params)
		},
	})
	if err != nil {
		r.t.Error(err)
		runtime.Goexit()
	}
	c.Conn = conn
	close(ready)
	return c
}

// take takes an event, and acknowledges what it was the last of.
func (c *client) take(method string, params json.RawMessage) {
	var e struct {
		ProcessID string
		Seq       uint64
		ExitCode  int
	}
	if method == protocol.NotificationOutput {
		output, err := protocol.DecodeOutput(params)
		if err != nil {
			return
		}
		e.ProcessID, e.Seq = output.ProcessID, output.Seq
	} else if json.Unmarshal(params, &e) != nil {
		return
	}
	c.mu.Lock()
	p := c.running[e.ProcessID]
	c.mu.Unlock()
	if p == nil || e.Seq == 0 {
		return
	}
	var err error
	if e.Seq != p.last+1 {
		err = fmt.Errorf("event %d follows event %d", e.Seq, p.last)
	}
	p.last = e.Seq
	_ = c.Notify(protocol.MethodAck, protocol.Ack{ProcessID: e.ProcessID, Seq: e.Seq})
	switch {
	case method == protocol.NotificationExited:
		p.code = e.ExitCode
	case method == protocol.NotificationClosed, err != nil:
		select {
		case p.closed <- err:
		default:
		}
	}
}

// command runs one command to its end.
func (r *run) command(c *client, n int) {
	kind := kinds[n%len(kinds)]
	id := strconv.Itoa(n)
	p := &command{closed: make(chan error, 1)}
	c.mu.Lock()
	c.running[id] = p
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begun := time.Now()
	err := c.Call(ctx, protocol.MethodStart, protocol.Start{
		ProcessID: id, Argv: []string{"/bin/sh", "-c", kind.script}, Cwd: protocol.URIPath("/"),
		Env: map[string]string{"PATH": os.Getenv("PATH")}, TTY: kind.tty,
	}, nil)
	took := time.Since(begun)
	if err == nil && kind.terminate {
		err = c.Call(ctx, protocol.MethodTerminate, protocol.Terminate{ProcessID: id}, nil)
	}
	if err == nil {
		select {
		case err = <-p.closed:
		case <-ctx.Done():
			err = fmt.Errorf("it is not closed after %v", patience)
		}
	}
	if err == nil && p.code != kind.code {
		err = fmt.Errorf("it exits with %d, want %d", p.code, kind.code)
	}
	if err != nil {
		r.t.Errorf("command %d (%s): %v", n, kind.name, err)
	}
	c.mu.Lock()
	delete(c.running, id)
	c.mu.Unlock()
	r.ended(took)
}

// ended notes a command, and takes a sample now and then.
func (r *run) ended(start time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts = append(r.starts, start)
	if r.done++; r.done%r.every != 0 {
		return
	}
	slices.Sort(r.starts)
	s := sample{
		commands: r.done, goroutines: runtime.NumGoroutine(), groups: countGroups(r.groups),
		start: float64(r.starts[len(r.starts)/2].Microseconds()) / 1000,
	}
	entries, _ := os.ReadDir("/proc/self/fd")
	s.descriptors = len(entries)
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	s.heap, s.rss = float64(memory.HeapAlloc)/(1<<20), rss()
	r.starts = r.starts[:0]
	r.samples = append(r.samples, s)
}

func countGroups(path string) (n int) {
	if path == "" {
		return 0
	}
	_ = filepath.WalkDir(path, func(_ string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			n++
		}
		return nil
	})
	return n
}

// rss is how much memory of this program is in use, in MiB.
func rss() float64 {
	text, _ := os.ReadFile("/proc/self/statm")
	if fields := strings.Fields(string(text)); len(fields) > 1 {
		pages, _ := strconv.Atoi(fields[1])
		return float64(pages*os.Getpagesize()) / (1 << 20)
	}
	return 0
}
