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
	"time"

	"execserver/client"
	"execserver/internal/testkit"
)

func TestCollect(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		// Done before the window is over.
		c := env.Command(background(t), "sh", "-c", "echo out; echo err >&2; exit 3")
		var s *client.Snapshot
		var err error
		testkit.Within(t, "Collect", func() { s, err = c.Collect(background(t), testkit.Patience) })
		if err != nil || s.Running || s.Exit == nil || s.Exit.ExitCode != 3 || s.Omitted != 0 || !slices.Contains([]string{"out\nerr\n", "err\nout\n"}, string(s.Output)) {
			t.Errorf("%+v, %v", s, err)
		}
		s, err = c.Collect(background(t), 0)
		if err != nil || s.Running || len(s.Output) > 0 || s.Exit.ExitCode != 3 {
			t.Errorf("after the end: %+v, %v", s, err)
		}

		// Not done, and written to meanwhile.
		c = env.Command(background(t), "sh", "-c", "echo name?; read name; echo hello $name")
		if _, err := c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		var out string
		for !strings.Contains(out, "name?\n") {
			s, err := c.Collect(background(t), 10*time.Millisecond)
			if err != nil || !s.Running || s.Exit != nil {
				t.Fatalf("%+v, %v", s, err)
			}
			out += string(s.Output)
		}
		if err := c.Write(background(t), []byte("you\n")); err != nil {
			t.Fatal(err)
		}
		testkit.Within(t, "Collect", func() { s, err = c.Collect(background(t), testkit.Patience) })
		if err != nil || s.Running || string(s.Output) != "hello you\n" || !s.Exit.Success() {
			t.Errorf("%+v, %v", s, err)
		}

		// A descendant that keeps the output does not keep Collect.
		c = env.Command(background(t), "sh", "-c", "sleep 3600 & echo started")
		testkit.Within(t, "Collect", func() { s, err = c.Collect(background(t), testkit.Patience) })
		if err != nil || s.Running || string(s.Output) != "started\n" {
			t.Errorf("%+v, %v", s, err)
		}

		// ctx takes nothing away.
		c = env.Command(background(t), "sh", "-c", "echo hi; exec sleep 3600")
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if _, err := c.Collect(ctx, testkit.Patience); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		for out = ""; out != "hi\n"; {
			s, err := c.Collect(background(t), 10*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			out += string(s.Output)
		}

		if _, err := env.Command(background(t), "no-such-program").Collect(background(t), 0); !errors.As(err, new(*client.StartError)) {
			t.Errorf("no program: %v", err)
		}
		c = child(env, "exit", "0")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Collect(background(t), 0); err == nil {
			t.Error("Collect after Start")
		}
		_ = c.Wait()
	})
}

// Output can be watched as it comes, and collected all the same.
func TestCollectLive(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		c := env.Command(background(t), "sh", "-c", "echo out; echo err >&2; read line; echo $line")
		live := make(chan string, 10)
		c.Stdout = watcher(live, "stdout ")
		c.Stderr = watcher(live, "stderr ")
		stdin, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if s, err := c.Collect(background(t), 0); err != nil || !s.Running {
			t.Fatalf("%+v, %v", s, err)
		}
		watched := map[string]bool{}
		testkit.Within(t, "the output while nobody collects it", func() { watched[<-live], watched[<-live] = true, true })
		if !watched["stdout out\n"] || !watched["stderr err\n"] {
			t.Errorf("watched %v", watched)
		}
		if _, err := stdin.Write([]byte("last\n")); err != nil {
			t.Fatal(err)
		}
		var s *client.Snapshot
		testkit.Within(t, "Collect", func() { s, err = c.Collect(background(t), testkit.Patience) })
		if err != nil || s.Exit == nil || !s.Exit.Success() || !strings.HasSuffix(string(s.Output), "last\n") {
			t.Errorf("%+v, %v", s, err)
		}
		testkit.Within(t, "the last output", func() {
			if last := <-live; last != "stdout last\n" {
				t.Errorf("watched %q", last)
			}
		})

		// A writer that fails is told of, and takes nothing away.
		c = env.Command(background(t), "sh", "-c", "echo one; echo two")
		broken := errors.New("the watcher is gone")
		c.Stdout = writerFunc(func([]byte) (int, error) { return 0, broken })
		testkit.Within(t, "Collect", func() {
			for s, err = c.Collect(background(t), testkit.Patience); err == nil; {
				var more *client.Snapshot
				more, err = c.Collect(background(t), testkit.Patience)
				s.Output = append(s.Output, more.Output...)
			}
		})
		if !errors.Is(err, broken) || string(s.Output) != "one\ntwo\n" {
			t.Errorf("%q, %v", s.Output, err)
		}
	})
}

// watcher returns a writer that passes on what is written to it.
func watcher(to chan<- string, prefix string) io.Writer {
	return writerFunc(func(b []byte) (int, error) {
		to <- prefix + string(b)
		return len(b), nil
	})
}

func TestCollectIsBounded(t *testing.T) {
	t.Parallel()
	env := openLocal(t, nil)
	c := child(env, "numbers", "100000")
	c.SnapshotBytes = 1000
	s, err := c.Collect(background(t), testkit.Patience)
	if err != nil || len(s.Output) > 1100 || !bytes.HasPrefix(s.Output, []byte("0\n1\n2\n")) || !bytes.HasSuffix(s.Output, []byte("\n99999\n")) {
		t.Errorf("%d bytes, %v", len(s.Output), err)
	}
	if want := fmt.Sprintf("\n[%d bytes omitted]\n", s.Omitted); s.Omitted != 588890-1000 || !bytes.Contains(s.Output, []byte(want)) {
		t.Errorf("%d bytes omitted: %q", s.Omitted, s.Output)
	}
}

func TestCommunicate(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		out, errOut, err := env.Command(background(t), "sh", "-c", "cat; echo err >&2").Communicate([]byte("input"))
		needs(t, env, "processCloseStdin", func() error { return err })
		if err != nil || string(out) != "input" || string(errOut) != "err\n" {
			t.Errorf("%q, %q, %v", out, errOut, err)
		}
	})
}

// record notes callbacks.
type record struct {
	mu    sync.Mutex
	words []string
	out   string
	end   *client.Snapshot
	err   error
	done  chan struct{}
}

func (r *record) callbacks() client.Callbacks {
	r.done = make(chan struct{})
	note := func(format string, args ...any) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.words = append(r.words, fmt.Sprintf(format, args...))
	}
	return client.Callbacks{
		Begin:       func(p *client.Process) { note("begin %t", p.ID != "") },
		Delta:       func(stream string, data []byte) { note("%s", stream); r.out += string(data) },
		Interaction: func(data []byte) { note("interaction %s", data) },
		End: func(s *client.Snapshot, err error) {
			note("end")
			r.end, r.err = s, err
			close(r.done)
		},
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, _ place) {
		var r record
		c := env.Command(background(t), "sh", "-c", "read x; echo got $x; exit 4")
		var tee bytes.Buffer
		c.Stdout = &tee
		if _, err := c.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		c.Follow(r.callbacks())
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if err := c.Write(background(t), []byte("it\n")); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		<-r.done
		r.mu.Lock()
		interaction := slices.Index(r.words, "interaction it\n") // anywhere: it is told by the writer
		words := slices.Delete(slices.Clone(r.words), max(0, interaction), interaction+1)
		r.mu.Unlock()
		if interaction < 0 || !slices.Equal(words, []string{"begin true", "stdout", "end"}) || r.out != "got it\n" || tee.String() != r.out {
			t.Errorf("%q, %q, %q", r.words, r.out, &tee)
		}
		if r.err != nil || string(r.end.Output) != "got it\n" || r.end.Exit.ExitCode != 4 || r.end.Running {
			t.Errorf("end: %+v, %v", r.end, r.err)
		}

		// A failed start tells nothing.
		r = record{}
		c = env.Command(background(t), "no-such-program")
		c.Follow(r.callbacks())
		if err := c.Run(); err == nil || len(r.words) > 0 {
			t.Errorf("%v, %q", err, r.words)
		}

		// The end comes once, also when the environment goes.
		r = record{}
		c = child(env, "idle")
		c.Follow(r.callbacks())
		if _, err := c.Collect(background(t), 0); err != nil {
			t.Fatal(err)
		}
		_ = env.Close()
		testkit.Within(t, "the end", func() { <-r.done })
		if !slices.Equal(r.words, []string{"begin true", "end"}) {
			t.Errorf("%q", r.words)
		}
	})
}

// A writer that fails does not keep the callbacks from being told.
func TestFollowWithBrokenWriter(t *testing.T) {
	t.Parallel()
	env := openLocal(t, nil)
	var r record
	broken := errors.New("broken")
	c := child(env, "echo", "hi")
	c.Stdout = writerFunc(func([]byte) (int, error) { return 0, broken })
	c.Follow(r.callbacks())
	if err := c.Run(); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	if !slices.Equal(r.words, []string{"begin true", "stdout", "end"}) {
		t.Errorf("%q", r.words)
	}
}

func TestCalls(t *testing.T) {
	t.Parallel()
	env := openLocal(t, nil)
	calls := client.Calls{Max: 3}
	var running []*client.Cmd
	for i := range 3 {
		c := child(env, "idle")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if err := calls.Add(strconv.Itoa(i), c); err != nil {
			t.Fatal(err)
		}
		running = append(running, c)
	}
	if err := calls.Add("0", running[0]); err == nil {
		t.Error("added twice")
	}
	extra := child(env, "idle")
	if err := calls.Add("3", extra); err == nil || !strings.Contains(err.Error(), "3 commands run already") {
		t.Errorf("too many: %v", err)
	}
	if got := calls.Running(); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("running %q", got)
	}
	_ = running[1].Terminate(background(t), 0)
	_ = running[1].Wait()
	if err := calls.Add("3", extra); err != nil {
		t.Error(err)
	}
	if _, ok := calls.Get("1"); ok {
		t.Error("1 is remembered")
	}
	if c, ok := calls.Get("0"); !ok || c != running[0] {
		t.Error("0 is forgotten")
	}
	if c, ok := calls.Remove("0"); !ok || c != running[0] {
		t.Error("0 cannot be removed")
	}
	if _, ok := calls.Remove("0"); ok {
		t.Error("0 was removed twice")
	}
}
