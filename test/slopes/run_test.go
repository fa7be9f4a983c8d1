//go:build linux

package slopes

import (
	"context"
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

	"execserver/internal/extension"
	"execserver/internal/ownership"
	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/protocol"
	"execserver/server"
)

const (
	atOnce    = 8  // commands at the same time
	samples   = 50 // of a run
	remembers = 256
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

// sample holds the measures at one moment.
type sample struct {
	descriptors int
	groups      int
	goroutines  int
	rss, heap   float64 // MiB
	start       float64 // ms, the median since the sample before
}

func newRun(t *testing.T, o *ownership.Ownership, groups string) *run {
	srv := server.New(&server.Options{
		Auth: server.Unauthenticated, Extensions: &extension.Options{Ownership: o},
		Session: server.SessionOptions{DetachedTTL: time.Second, MaxClosed: remembers},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.ServeWebSocket(l)
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	return &run{t: t, url: "ws://" + l.Addr().String(), groups: groups, begun: time.Now()}
}

// all runs commands, with perSession of them in each session.
func (r *run) all(commands, perSession int) {
	r.every = max(1, commands/samples)
	var next atomic.Int64
	take := func() (n int, ok bool) { n = int(next.Add(1)); return n, n <= commands }
	if perSession == commands {
		s := r.open()
		defer r.close(s)
		var wg sync.WaitGroup
		for range atOnce {
			wg.Go(func() {
				for n, ok := take(); ok && !r.t.Failed(); n, ok = take() {
					r.command(s, n)
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
				s := r.open()
				for range perSession {
					n, ok := take()
					if more = ok; !more {
						break
					}
					r.command(s, n)
				}
				r.close(s)
			}
		})
	}
	wg.Wait()
}

func (r *run) open() *testclient.Session {
	s := &testclient.Session{URL: r.url, Patience: testkit.Patience}
	if err := testclient.Open(context.Background(), s); err != nil {
		r.t.Error(err)
		runtime.Goexit()
	}
	return s
}

// close closes a session, which must not have lost its connection.
func (r *run) close(s *testclient.Session) {
	if n, err := s.Resumes(), s.Err(); n > 0 || err != nil {
		r.t.Errorf("a session has lost its connection %d times: %v", n, err)
	}
	s.Close()
}

// command runs one command to its end.
func (r *run) command(s *testclient.Session, n int) {
	kind := kinds[n%len(kinds)]
	p := &testclient.Process{ID: strconv.Itoa(n)}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	begun := time.Now()
	err := s.Start(ctx, p, protocol.StartParams{
		Argv: []string{"/bin/sh", "-c", kind.script}, Cwd: protocol.URIPath("/"),
		Env: map[string]string{"PATH": os.Getenv("PATH")}, TTY: kind.tty,
	})
	took := time.Since(begun)
	if err == nil && kind.terminate {
		err = s.Call(ctx, protocol.MethodTerminate, protocol.TerminateParams{ProcessID: p.ID}, nil)
	}
	code := 0
	if err == nil {
		code, err = p.Wait(ctx)
	}
	if err == nil && code != kind.code {
		err = fmt.Errorf("it exits with %d, want %d", code, kind.code)
	}
	if err != nil {
		r.t.Errorf("command %d (%s): %v", n, kind.name, err)
	}
	s.Forget(p)
	r.ended(took)
}

// ended counts a command, and now and then adds a sample.
func (r *run) ended(start time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts = append(r.starts, start)
	if r.done++; r.done%r.every != 0 {
		return
	}
	slices.Sort(r.starts)
	s := sample{
		goroutines: runtime.NumGoroutine(), groups: countGroups(r.groups),
		start: float64(r.starts[len(r.starts)/2].Microseconds()) / 1000,
	}
	s.descriptors = testkit.Descriptors(r.t)
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

// rss returns the resident memory of this program in MiB.
func rss() float64 {
	text, _ := os.ReadFile("/proc/self/statm")
	if fields := strings.Fields(string(text)); len(fields) > 1 {
		pages, _ := strconv.Atoi(fields[1])
		return float64(pages*os.Getpagesize()) / (1 << 20)
	}
	return 0
}
