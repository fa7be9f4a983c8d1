//go:build linux

// Package chaos runs many processes over a network that delays, stalls, cuts and
// forgets connections, and misses nothing: every line arrives once, every process
// ends as it did.
//
//	CHAOS_PROCESSES=1000 go test -race ./test/chaos
//	CHAOS_SEED=1 go test ./test/chaos
package chaos

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/protocol"
	"execserver/server"
)

func TestMain(m *testing.M) {
	testkit.DefaultSignals()
	// The thread that spawns children must live as long as the program.
	testkit.VerifyMain(m)
}

// atOnce is the number of processes that run at the same time.
const atOnce = 50

// leastResumes is the number of resumes that the test needs. On a fast machine the
// processes end before the proxy has broken many connections, and the test runs more.
const leastResumes = 10

// sessionCount is the number of sessions that the processes are spread over.
const sessionCount = 4

func TestChaos(t *testing.T) {
	processes, seed := testkit.Number(t, "CHAOS_PROCESSES", 60), testkit.Number(t, "CHAOS_SEED", uint64(time.Now().UnixNano()))
	t.Logf("%d processes; CHAOS_SEED=%d repeats them", processes, seed)
	srv := server.New(&server.Options{
		Auth:         server.Unauthenticated,
		PingInterval: time.Second,
		ProbeTimeout: 200 * time.Millisecond,
		Session: server.SessionOptions{
			// A process that is forgotten before its start is repeated is started again.
			RetainedBytes: 32 << 10, RetainedTotalBytes: 1 << 20, DetachedTTL: time.Hour, ClosedTTL: time.Hour,
		},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.ServeWebSocket(l)
	network := newProxy(t, l.Addr().String(), seed)
	defer network.close()
	defer testkit.Shutdown(t, srv)

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(processes)*time.Second)
	defer cancel()
	var sessions []*testclient.Session
	for i := range sessionCount {
		s := &testclient.Session{URL: network.url(), AckEvery: 1 + 3*i, Patience: time.Second}
		s.Asks.BinaryFrames, s.Asks.Compress = i%2 == 0, i%4 == 0
		if err := testclient.Open(ctx, s); err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		sessions = append(sessions, s)
	}
	watching, stop := context.WithCancel(ctx)
	var observers sync.WaitGroup
	observers.Go(func() { observe(watching, t, network.url(), sessions[0].ID()) })

	var first sync.Once
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i := uint64(0); i < processes || resumes(sessions) < leastResumes && ctx.Err() == nil; i++ {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			j := newJob(i, rand.New(rand.NewPCG(seed, i)))
			if err := j.run(ctx, sessions[i%sessionCount]); err != nil {
				first.Do(func() { t.Errorf("process %d (%s): %v", i, j.name, err) })
				cancel() // the others have nothing to tell
			}
		})
	}
	wg.Wait()
	stop()
	observers.Wait()
	network.calm.Store(true)
	for _, s := range sessions {
		if err := s.Err(); err != nil {
			t.Errorf("session: %v", err)
		}
	}
	t.Logf("%d resumes, faults: %v", resumes(sessions), network.counts())
}

// resumes returns the number of times that the sessions have resumed.
func resumes(sessions []*testclient.Session) int {
	n := 0
	for _, s := range sessions {
		n += s.Resumes()
	}
	return n
}

// job is one process and its expected output.
type job struct {
	name   string
	id     string
	script string
	lines  int // that it prints
	code   int
	echo   bool // it prints what it is given, which are the lines
	kill   bool // it is ended on its way
	tty    bool

	mu    sync.Mutex
	next  int // number of the line that must come next
	rest  []byte
	wrong error
}

func newJob(i uint64, random *rand.Rand) *job {
	j := &job{id: strconv.FormatUint(i, 10), lines: 1 + random.IntN(4000), code: random.IntN(100)}
	switch random.IntN(10) {
	case 0, 1:
		j.name, j.script, j.echo, j.lines = "cat", "cat; exit $1", true, 1+random.IntN(40)
	case 2:
		j.name, j.script, j.kill, j.lines = "killed", "i=1; while :; do echo $i; i=$((i+1)); done", true, -1
	case 3, 4:
		j.name, j.script = "slow", "i=1; while test $i -le $2; do echo $i; i=$((i+1)); test $((i%200)) = 0 && sleep 0.02; done; exit $1"
	case 5:
		j.name, j.script = "lingering", "exec 3>&1; (sleep 0.2; seq $(($2/2+1)) $2) & seq 1 $(($2/2)); exit $1"
	case 6:
		j.name, j.script, j.tty = "terminal", "seq 1 $2; exit $1", true
	default:
		j.name, j.script = "quick", "seq 1 $2; exit $1"
	}
	return j
}

func (j *job) run(ctx context.Context, s *testclient.Session) error {
	p := &testclient.Process{ID: j.id, Take: j.take}
	err := s.Start(ctx, p, protocol.StartParams{
		Argv: []string{"/bin/sh", "-c", j.script, "sh", strconv.Itoa(j.code), strconv.Itoa(j.lines)},
		Cwd:  protocol.OSPath("/"), Env: map[string]string{"PATH": "/usr/bin:/bin"}, PipeStdin: j.echo, TTY: j.tty,
		Drain: protocol.DrainEOF, // on a busy machine, what lingers is quiet for long
	})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	switch {
	case j.echo:
		err = j.feed(ctx, s)
	case j.kill:
		for p.Last() < 3 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		err = s.Call(ctx, protocol.MethodSignal, protocol.SignalParams{ProcessID: j.id, Signal: "SIGUSR1"}, nil)
	}
	if err != nil {
		return err
	}
	code, err := p.Wait(ctx)
	if err != nil {
		return err
	}
	want := j.code
	if j.kill {
		want = 128 + 10
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.wrong != nil:
		return j.wrong
	case code != want:
		return fmt.Errorf("ended with code %d, not %d", code, want)
	case !j.kill && (j.next != j.lines || len(j.rest) > 0):
		return fmt.Errorf("%d lines of %d, and %q", j.next, j.lines, j.rest)
	}
	return nil
}

// feed writes each line once and closes the input.
func (j *job) feed(ctx context.Context, s *testclient.Session) error {
	for i := range j.lines {
		var result protocol.WriteResult
		err := s.Call(ctx, protocol.MethodWrite, map[string]any{
			"processId": j.id, "writeId": strconv.Itoa(i + 1),
			"chunk": base64.StdEncoding.EncodeToString(fmt.Appendln(nil, i+1)),
		}, &result)
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		if !result.Accepted {
			return fmt.Errorf("write %d is %s", i+1, result.Status)
		}
	}
	if err := s.Call(ctx, protocol.MethodCloseStdin, protocol.CloseStdinParams{ProcessID: j.id}, nil); err != nil {
		return fmt.Errorf("closeStdin: %w", err)
	}
	return nil
}

// take checks that the lines are the numbers from 1 on.
func (j *job) take(_ string, data []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.rest = append(j.rest, data...)
	for {
		line, rest, ok := bytes.Cut(j.rest, []byte("\n"))
		if !ok {
			return
		}
		j.rest = rest
		if j.tty {
			line = bytes.TrimSuffix(line, []byte("\r"))
		}
		j.next++
		if string(line) != strconv.Itoa(j.next) && j.wrong == nil {
			j.wrong = fmt.Errorf("line %d is %q", j.next, line)
		}
	}
}

// observe watches a session over connections that break all the time. The events on each
// connection have no gaps except those that the server reports.
func observe(ctx context.Context, t *testing.T, url, id string) {
	for ctx.Err() == nil {
		seqs := make(map[string]uint64)
		c, err := testclient.Dial(ctx, url, testclient.Options{Observe: id, Notify: func(method string, raw json.RawMessage) {
			if err := follow(seqs, method, raw); err != nil {
				t.Errorf("observer: %v", err)
			}
		}})
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		select {
		case <-ctx.Done():
		case <-c.Done():
		case <-time.After(time.Second):
		}
		c.Drop()
	}
}
