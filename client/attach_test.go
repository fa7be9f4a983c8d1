//go:build unix

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
)

// dialed opens an Environment at a server that listens.
func dialed(t *testing.T, url string, opts *client.Options) *client.Environment {
	t.Helper()
	env, err := client.Dial(background(t), url, opts)
	return opened(t, env, err)
}

// attached attaches to a process, which must succeed.
func attached(t *testing.T, env *client.Environment, id string) *client.Process {
	t.Helper()
	p, err := env.Attach(background(t), id)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// startCat starts a command that copies its stdin to its stdout.
func startCat(t *testing.T, env *client.Environment) *client.Cmd {
	t.Helper()
	c := child(env, "cat")
	if _, err := c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// said waits until the process has written that in all.
func said(t *testing.T, p *client.Process, want string) {
	t.Helper()
	var got strings.Builder
	for e, err := range p.EventsAfter(background(t), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if got.Write(e.Data); got.Len() >= len(want) {
			break
		}
	}
	if got.String() != want {
		t.Fatalf("the process wrote %q, not %q", &got, want)
	}
}

// A session that a program detached from is another program's, with all that its
// processes wrote and with ids and input of its own.
func TestDetachAndResume(t *testing.T) {
	t.Parallel()
	for name, serve := range listening {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := serve(t, nil)
			first := dialed(t, url, nil)
			c := startCat(t, first)
			if err := c.Write(background(t), []byte("before\n")); err != nil {
				t.Fatal(err)
			}
			said(t, c.Process, "before\n")
			session := first.Session()
			if err := first.Detach(background(t)); err != nil {
				t.Fatal(err)
			}
			if err := c.Wait(); !errors.Is(err, client.ErrClosed) {
				t.Errorf("Wait after Detach: %v", err)
			}
			if err := first.Detach(background(t)); !errors.Is(err, client.ErrClosed) {
				t.Errorf("second Detach: %v", err)
			}

			second := dialed(t, url, &client.Options{Session: session})
			if second.Session() != session || second.Observing() {
				t.Errorf("session %s, observing %t", second.Session(), second.Observing())
			}
			infos, err := second.Processes(background(t))
			if err != nil || len(infos) != 1 || infos[0].ID != c.ID || infos[0].State != protocol.StateRunning || infos[0].Started.IsZero() {
				t.Fatalf("Processes: %+v, %v", infos, err)
			}
			if out, err := child(second, "echo", "own").Output(); err != nil || string(out) != "own\n" {
				t.Errorf("a command of its own: %q, %v", out, err)
			}
			p := attached(t, second, c.ID)
			if again := attached(t, second, c.ID); again != p {
				t.Error("attached twice, and two processes")
			}
			// Its first write, like the first program's.
			if err := p.Write(background(t), []byte("after\n")); err != nil {
				t.Fatal(err)
			}
			if err := p.CloseStdin(background(t)); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := p.Copy(background(t), &out, nil); err != nil || out.String() != "before\nafter\n" {
				t.Errorf("Copy: %q, %v", &out, err)
			}
			if exit, err := p.Wait(background(t)); err != nil || !exit.Success() {
				t.Errorf("Wait: %v, %v", exit, err)
			}
		})
	}
}

// So it is with the released server, as far as it has the means.
func TestResumeAtCodex(t *testing.T) {
	t.Parallel()
	url := testkit.ServeCommand(t, codexCommand(t, "ws://127.0.0.1:0"))
	first := dialed(t, url, nil)
	c := child(first, "cat")
	if _, err := c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if err := c.Write(background(t), []byte("before\n")); err != nil {
		t.Fatal(err)
	}
	said(t, c.Process, "before\n")
	if err := first.Detach(background(t)); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	second := dialed(t, url, &client.Options{Session: first.Session()})
	p := attached(t, second, c.ID)
	if err := p.Write(background(t), []byte("after\n")); err != nil {
		t.Fatal(err)
	}
	said(t, p, "before\nafter\n")
	for what, err := range map[string]error{
		"Processes": second1(second.Processes(background(t))),
		"Snapshot":  second1(p.Snapshot(background(t), 0)),
		"Observe":   second1(client.Dial(background(t), url, &client.Options{Observe: second.Session()})),
	} {
		if !errors.As(err, new(*client.UnsupportedError)) || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := p.Terminate(background(t), 0); err != nil {
		t.Error(err)
	}
	if err := p.Copy(background(t), nil, nil); err != nil {
		t.Errorf("Copy to the end: %v", err)
	}
}

func second1[T any](_ T, err error) error { return err }

// Everywhere a process of a Cmd can be copied, waited for and looked at without it.
func TestProcessAlone(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		c := child(env, "echo", "hello")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := c.Copy(background(t), &out, nil); err != nil || out.String() != "hello\n" {
			t.Errorf("Copy: %q, %v", &out, err)
		}
		if exit, err := c.Process.Wait(background(t)); err != nil || !exit.Success() {
			t.Errorf("Wait: %v, %v", exit, err)
		}
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
		out.Reset()
		if err := attached(t, env, c.ID).Copy(background(t), &out, nil); err != nil || out.String() != "hello\n" {
			t.Errorf("Copy of a closed process: %q, %v", &out, err)
		}
		if err := env.TakeOver(background(t)); err != nil {
			t.Errorf("the owner takes over: %v", err)
		}
		if env.Session() == "" {
			t.Error("no session id")
		}
		needs(t, env, "processSnapshot", func() error { return second1(c.Snapshot(background(t), 0)) })
		s, err := c.Snapshot(background(t), 4)
		if err != nil || s.Exit == nil || !s.Closed || string(s.Stdout.Head)+"|"+string(s.Stdout.Tail) != "he|o\n" || s.Stdout.OmittedBytes != 2 || s.Terminal != nil {
			t.Errorf("Snapshot: %+v, %v", s, err)
		}
		needs(t, env, "processList", func() error { return second1(env.Processes(background(t))) })
		infos, err := env.Processes(background(t))
		if err != nil || len(infos) != 1 || infos[0].Exit == nil || infos[0].Dir == "" || infos[0].NextSeq != 4 {
			t.Errorf("Processes: %+v, %v", infos, err)
		}
	})
}

func TestSessionUnknown(t *testing.T) {
	t.Parallel()
	url := serveWebSocket(t, nil)
	for _, opts := range []client.Options{{Session: "none"}, {Observe: "none"}} {
		if _, err := client.Dial(background(t), url, &opts); !errors.Is(err, client.ErrUnknownSession) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	if _, err := client.Dial(background(t), url, &client.Options{Session: "a", Observe: "b"}); err == nil || errors.As(err, new(*client.DialError)) {
		t.Errorf("both: %v", err)
	}
	owner := dialed(t, url, nil)
	if _, err := client.Dial(background(t), url, &client.Options{Session: owner.Session()}); !errors.Is(err, protocol.ErrSessionAttached) {
		t.Errorf("a session that is attached: %v", err)
	}
	for _, env := range []*client.Environment{owner, dialed(t, url, &client.Options{Observe: owner.Session()})} {
		if _, err := env.Attach(background(t), "none"); !errors.Is(err, protocol.ErrInvalidRequest) {
			t.Errorf("Attach to no process: %v", err)
		}
	}
}

// An observer sees everything, changes nothing, and ends nothing.
func TestObserve(t *testing.T) {
	t.Parallel()
	for name, serve := range listening {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := serve(t, nil)
			owner := dialed(t, url, nil)
			c := startCat(t, owner)
			if err := c.Write(background(t), []byte("one\n")); err != nil {
				t.Fatal(err)
			}
			observer := dialed(t, url, &client.Options{Observe: owner.Session()})
			if !observer.Observing() {
				t.Error("it does not observe")
			}
			p := attached(t, observer, c.ID)
			said(t, p, "one\n")
			if err := c.Write(background(t), []byte("two\n")); err != nil {
				t.Fatal(err)
			}
			said(t, p, "one\ntwo\n")
			for what, err := range map[string]error{
				"Write":      p.Write(background(t), []byte("x")),
				"CloseStdin": p.CloseStdin(background(t)),
				"Terminate":  p.Terminate(background(t), 0),
				"Start":      child(observer, "echo").Run(),
				"ReadFile":   second1(observer.FS("/").ReadFile("etc/hostname")),
			} {
				if !errors.Is(err, client.ErrObserving) {
					t.Errorf("%s: %v", what, err)
				}
			}
			_ = observer.Close()
			if _, err := p.Wait(background(t)); !errors.Is(err, client.ErrClosed) {
				t.Errorf("Wait of a closed observer: %v", err)
			}
			if err := c.Write(background(t), []byte("three\n")); err != nil {
				t.Errorf("the owner after the observer: %v", err)
			}
			if err := c.CloseStdin(background(t)); err != nil {
				t.Error(err)
			}
			if err := c.Wait(); err != nil {
				t.Errorf("the owner's command: %v", err)
			}
		})
	}
}

// Who takes over reads on without a gap, and owns what the other one had.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	url := serveWebSocket(t, nil)
	owner := dialed(t, url, nil)
	c := startCat(t, owner)
	observer := dialed(t, url, &client.Options{Observe: owner.Session()})
	p := attached(t, observer, c.ID)
	if err := c.Write(background(t), []byte("one\n")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	copied := make(chan error, 1)
	go func() { copied <- p.Copy(context.Background(), &out, nil) }()
	if err := observer.TakeOver(background(t)); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, "the end of the former owner", func() { <-owner.Done() })
	if err := owner.Err(); !errors.Is(err, client.ErrTakenOver) {
		t.Errorf("the former owner: %v", err)
	}
	if err := c.Wait(); !errors.Is(err, client.ErrTakenOver) {
		t.Errorf("the former owner's command: %v", err)
	}
	if err := p.Write(background(t), []byte("two\n")); err != nil {
		t.Fatal(err)
	}
	if out, err := child(observer, "echo", "own").Output(); err != nil || string(out) != "own\n" {
		t.Errorf("a command of the new owner: %q, %v", out, err)
	}
	if err := p.CloseStdin(background(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-copied; err != nil || out.String() != "one\ntwo\n" {
		t.Errorf("Copy: %q, %v", &out, err)
	}
}

// Several programs that take a session over from each other leave it with one owner.
func TestTakeOverRace(t *testing.T) {
	t.Parallel()
	url := serveWebSocket(t, nil)
	owner := dialed(t, url, nil)
	c := startCat(t, owner)
	envs := make([]*client.Environment, 4)
	for i := range envs {
		envs[i] = dialed(t, url, &client.Options{Observe: owner.Session()})
	}
	var wg sync.WaitGroup
	for _, env := range envs {
		wg.Go(func() {
			if err := env.TakeOver(background(t)); err != nil && !errors.Is(err, client.ErrTakenOver) {
				t.Errorf("TakeOver: %v", err)
			}
		})
	}
	wg.Wait()
	_ = c.Wait()
	testkit.WaitFor(t, testkit.Patience, func() error {
		working := 0
		for _, env := range envs {
			if env.Err() == nil {
				working++
			} else if !errors.Is(env.Err(), client.ErrTakenOver) {
				t.Fatalf("one that lost: %v", env.Err())
			}
		}
		if working != 1 {
			return fmt.Errorf("%d owners", working)
		}
		return nil
	})
	last := envs[slices.IndexFunc(envs, func(e *client.Environment) bool { return e.Err() == nil })]
	p := attached(t, last, c.ID)
	if err := p.Write(background(t), []byte("mine")); err != nil {
		t.Fatal(err)
	}
	said(t, p, "mine")
}

// A connection that breaks while its session is taken over leaves an owner all the same.
func TestTakeOverWhileCut(t *testing.T) {
	t.Parallel()
	url := serveWebSocket(t, nil)
	for range 8 {
		owner := dialed(t, url, nil)
		c := startCat(t, owner)
		p := newProxy(t, url)
		next := dialed(t, p.url, &client.Options{Observe: owner.Session()})
		var wg sync.WaitGroup
		wg.Go(p.cut)
		if err := next.TakeOver(background(t)); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		again := attached(t, next, c.ID)
		if err := again.Write(background(t), []byte("mine")); err != nil {
			t.Fatal(err)
		}
		said(t, again, "mine")
		_ = owner.Close()
		_ = c.Wait()
		_ = next.Close()
	}
}

// patternReader reads the pattern from events, over gaps that are told.
type patternReader struct {
	check patternChecker
	lost  uint64
	gaps  int
}

func (r *patternReader) read(t *testing.T, p *client.Process) (exit *client.Exit) {
	t.Helper()
	last := uint64(0)
	for e, err := range p.Events(background(t)) {
		gap, ok := errors.AsType[*client.GapError](err)
		switch {
		case ok:
			if gap.From != last+1 || gap.To < gap.From {
				t.Fatalf("a gap from %d to %d after event %d", gap.From, gap.To, last)
			}
			last = gap.To
			r.gaps++
			r.lost += gap.DroppedBytes
			r.check.n += int64(gap.DroppedBytes)
			continue
		case err != nil:
			t.Fatal(err)
		case e.Seq != last+1:
			t.Fatalf("event %d after %d", e.Seq, last)
		}
		last = e.Seq
		if e.Kind == client.Exited {
			exit = e.Exit
		}
		if _, err := r.check.Write(e.Data); err != nil {
			t.Fatal(err)
		}
	}
	return exit
}

// startPattern starts a command that writes so much, and reads the first piece of it.
func startPattern(t *testing.T, env *client.Environment, size int) (*client.Cmd, io.Reader) {
	t.Helper()
	c := child(env, "pattern", strconv.Itoa(size))
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1<<10)); err != nil {
		t.Fatal(err)
	}
	return c, stdout
}

// What a program has not acknowledged is there for the next one, however often the
// connection breaks, and however much it is: the process waits.
func TestResumeLosesNothing(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	url := serveWebSocket(t, &server.Options{Session: server.SessionOptions{RetainedBytes: 256 << 10}})
	first := dialed(t, url, nil)
	c, _ := startPattern(t, first, size)
	if err := first.Detach(background(t)); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()

	through := newProxy(t, url)
	second := dialed(t, through.url, &client.Options{Session: first.Session()})
	for range 5 { // meanwhile the server sends what nobody has acknowledged
		if err := child(second, "exit", "0").Run(); err != nil {
			t.Fatal(err)
		}
	}
	p := attached(t, second, c.ID)
	through.cutEvery(512<<10, 6)
	var r patternReader
	if exit := r.read(t, p); exit == nil || exit.ExitCode != 9 {
		t.Errorf("exit %v", exit)
	}
	if r.check.n != size || r.gaps > 0 {
		t.Errorf("%d bytes of %d, %d gaps", r.check.n, size, r.gaps)
	}
	if through.cutCount() < 3 {
		t.Errorf("%d cuts", through.cutCount())
	}
}

// An observer that was away is told, with numbers, what it has missed. What it says is not
// lost is there.
func TestObserverGaps(t *testing.T) {
	t.Parallel()
	const size = 6 << 20
	url := serveWebSocket(t, &server.Options{Session: server.SessionOptions{RetainedBytes: 256 << 10}})
	owner := dialed(t, url, nil)
	c, stdout := startPattern(t, owner, size)
	through := newProxy(t, url)
	observer := dialed(t, through.url, &client.Options{Observe: owner.Session()})
	p := attached(t, observer, c.ID)
	through.setRefuse(true)
	through.cut()
	if _, err := io.CopyN(io.Discard, stdout, size/2); err != nil {
		t.Fatal(err)
	}
	through.setRefuse(false)
	var rest sync.WaitGroup
	rest.Go(func() {
		if _, err := io.Copy(io.Discard, stdout); err != nil {
			t.Error(err)
		}
		_ = c.Wait()
	})
	defer rest.Wait()
	var r patternReader
	if exit := r.read(t, p); exit == nil || exit.ExitCode != 9 {
		t.Errorf("exit %v", exit)
	}
	if r.check.n != size || r.gaps == 0 || r.lost == 0 {
		t.Errorf("%d bytes of %d, of which %d lost in %d gaps", r.check.n, size, r.lost, r.gaps)
	}
}

// A process that closes while somebody attaches to it is read to its end.
func TestAttachToClosing(t *testing.T) {
	t.Parallel()
	url := serveWebSocket(t, nil)
	owner := dialed(t, url, nil)
	observer := dialed(t, url, &client.Options{Observe: owner.Session()})
	for range 30 {
		c := child(owner, "numbers", "100")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		p := attached(t, observer, c.ID)
		var out bytes.Buffer
		if err := p.Copy(background(t), &out, nil); err != nil || !strings.HasSuffix(out.String(), "\n99\n") {
			t.Fatalf("Copy: %q, %v", &out, err)
		}
		if exit, err := p.Wait(background(t)); err != nil || !exit.Success() {
			t.Errorf("Wait: %v, %v", exit, err)
		}
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
		// And once more, when it has closed.
		out.Reset()
		if err := attached(t, observer, c.ID).Copy(background(t), &out, nil); err != nil || !strings.HasSuffix(out.String(), "\n99\n") {
			t.Fatalf("Copy of a closed process: %q, %v", &out, err)
		}
	}
}

// Wait lets a process end whose output nobody reads.
func TestWaitOfAttached(t *testing.T) {
	t.Parallel()
	url := serveWebSocket(t, &server.Options{Session: server.SessionOptions{RetainedBytes: 256 << 10}})
	first := dialed(t, url, nil)
	c := child(first, "pattern", strconv.Itoa(4<<20))
	if _, err := c.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if err := first.Detach(background(t)); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	second := dialed(t, url, &client.Options{Session: first.Session()})
	if exit, err := attached(t, second, c.ID).Wait(background(t)); err != nil || exit.ExitCode != 9 {
		t.Errorf("Wait: %v, %v", exit, err)
	}
}

// Close of a session that was resumed ends what is left in it, attached or not.
func TestCloseOfResumed(t *testing.T) {
	t.Parallel()
	url := serveWebSocket(t, nil)
	first := dialed(t, url, nil)
	commands := []*client.Cmd{child(first, "idle"), child(first, "idle"), child(first, "hold")}
	const ours = "EXEC_SERVER_TEST_CLOSE_OF_RESUMED" // on top of the mark, which those of other tests have
	for _, c := range commands {
		c.Env = append(c.Env, ours+"="+mark)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Detach(background(t)); err != nil {
		t.Fatal(err)
	}
	for _, c := range commands {
		_ = c.Wait()
	}
	if len(testkit.WithVariable(t, ours, mark)) < 2 {
		t.Error("Detach ends processes")
	}
	second := dialed(t, url, &client.Options{Session: first.Session()})
	attached(t, second, commands[0].ID)
	_ = second.Close()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if left := testkit.WithVariable(t, ours, mark); len(left) > 0 {
			return fmt.Errorf("processes: %q", left)
		}
		return nil
	})
}
