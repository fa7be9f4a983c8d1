//go:build unix

package process_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"execserver/internal/output"
	"execserver/internal/process"
	"execserver/internal/testkit"
	"execserver/internal/testkit/processtest"
	"execserver/protocol"
)

// talker is a command that prints "up" and leaves a process in the background
// that prints every line written to the FIFO, to stdout and, with "!", to stderr.
func talker(t *testing.T) (spec process.Spec, fifo string) {
	t.Helper()
	fifo = filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	// The FIFO is open before "up": it keeps its content only while a process has it
	// open.
	spec = shell(`trap '' HUP; exec 3<>"$0"; (while read -r line <&3; do case $line in
		quit) exit;; !*) echo "$line" >&2;; *) echo "$line";; esac; done) & echo up`)
	spec.Argv = append(spec.Argv, fifo)
	return spec, fifo
}

// say writes to the FIFO of a talker.
func say(t *testing.T, fifo, text string) {
	t.Helper()
	f, err := os.OpenFile(fifo, os.O_RDWR, 0) // so that it does not wait for a reader
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text + "\n"); err != nil {
		t.Fatal(err)
	}
}

// awaitBackground waits until the background output is as wanted.
func awaitBackground(t *testing.T, p *process.Process, want string) *protocol.ReadBackgroundResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	for after := uint64(0); ; {
		r := p.Log.ReadBackground(0, nil)
		var got strings.Builder
		for i, c := range r.Chunks {
			if c.Seq != r.Chunks[0].Seq+uint64(i) {
				t.Fatalf("chunk %d follows chunk %d", c.Seq, r.Chunks[0].Seq+uint64(i)-1)
			}
			if i == 0 || c.Stream != r.Chunks[i-1].Stream {
				got.WriteString(c.Stream[3:] + ":")
			}
			got.Write(c.Data) // cut anywhere
		}
		text := strings.ReplaceAll(got.String(), "\r\n", "\n")
		if text == want {
			return r
		}
		if ctx.Err() != nil {
			t.Fatalf("background output is %q, want %q", text, want)
		}
		p.Log.WaitBackground(ctx, after)
		after = r.NextSeq - 1
	}
}

// What holds the streams in silence does not keep a process from closing, and goes
// on writing.
func TestQuietHoldersDoNotDelayClosed(t *testing.T) {
	for _, tty := range []bool{false, true} {
		t.Run(fmt.Sprintf("tty=%v", tty), func(t *testing.T) {
			owner := processtest.Ownership(t, nil).NewOwner()
			spec, fifo := talker(t)
			spec.TTY = tty
			p := start(t, spec, &process.Options{Owner: owner, Name: "talker", DrainTimeout: time.Hour})
			s := follow(t, p)
			want := []output.EventKind{output.Output, output.Exited, output.Closed}
			if diff := cmp.Diff(want, s.Kinds()); diff != "" || strings.TrimSpace(s.All) != "up" {
				t.Errorf("output %q, order of events (-want +got):\n%s", s.All, diff)
			}
			out, err := "out:", "err:"
			if tty {
				out, err = ":", ""
			}
			say(t, fifo, "one")
			awaitBackground(t, p, out+"one\n")
			if p.Terminate(); !p.Log.BackgroundOpen() {
				t.Error("nobody holds the streams after Terminate")
			}
			say(t, fifo, "!two")
			r := awaitBackground(t, p, out+"one\n"+err+"!two\n")
			if r.Closed {
				t.Error("the background output has ended")
			}
			if list := owner.Background(); len(list) == 0 || list[0].Name != "talker" {
				t.Errorf("Background is %+v", list)
			}
			say(t, fifo, "quit")
			<-p.Done()
			if r := p.Log.ReadBackground(r.NextSeq-1, nil); !r.Closed || len(r.Chunks) > 0 || p.Log.BackgroundOpen() {
				t.Errorf("after the end: %+v, held %v", r, p.Log.BackgroundOpen())
			}
			if e, ok := p.Log.Borrow(uint64(len(s.Events))); ok {
				t.Errorf("after closed came %+v", e)
			}
		})
	}
}

// Output that comes before it has been quiet for a moment is the process's own,
// and so is what comes while it drains to the end.
func TestClosedWaitsForWhatFlows(t *testing.T) {
	for _, test := range []struct {
		name    string
		drain   protocol.Drain
		timeout time.Duration
		quiet   time.Duration // more than what writes can be late
		command string
		want    string
		least   time.Duration
	}{
		{"soon", "", testkit.Patience, testkit.Patience, "(sleep 0.02; echo late) & echo early", "early\nlate\n", 0},
		{"flow", "", 3 * time.Second, 2 * time.Second, "(while :; do echo y; sleep 0.05; done) & sleep 0.2", "", 3 * time.Second},
		{"end", protocol.DrainEOF, 0, 0, "(sleep 0.6; echo late) & echo early", "early\nlate\n", 600 * time.Millisecond},
		{"end by default", "", -1, 0, "(sleep 0.6; echo late) & echo early", "early\nlate\n", 600 * time.Millisecond},
		{"quiet, where the end is the default", protocol.DrainQuiet, -1, 0, "sleep 100 & echo early", "early\n", 0},
		{"timeout before it is quiet", "", time.Millisecond, 0, "sleep 100 & echo early", "early\n", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			spec := shell(test.command)
			spec.Drain = test.drain
			began := time.Now()
			opts := &process.Options{Owner: processtest.Owner(t, nil), DrainTimeout: test.timeout}
			opts.QuietTime(test.quiet)
			p := start(t, spec, opts)
			s := follow(t, p)
			took := time.Since(began)
			if took < test.least {
				t.Errorf("closed after %v, want %v at least", took, test.least)
			}
			if test.want != "" && s.All != test.want {
				t.Errorf("output %q, want %q", s.All, test.want)
			}
		})
	}
}

// A process in the background that floods is not held up, costs bounded memory,
// and no byte is lost in silence; neither when other processes have used up the
// total.
func TestBackgroundFlood(t *testing.T) {
	const retained = 200_000
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprintf("full=%v", full), func(t *testing.T) {
			owner := processtest.Owner(t, nil)
			budget := output.NewBudget(10 * retained)
			opts := &process.Options{Owner: owner, Budget: budget, RetainedBytes: retained, DrainTimeout: 50 * time.Millisecond}
			file := filepath.Join(t.TempDir(), "count")
			argv, env := testkit.Child("count", file)
			p := start(t, process.Spec{Argv: append([]string{"/bin/sh", "-c", `"$0" "$@" & exit 3`}, argv...), Env: env}, opts)
			foreground := uint64(len(follow(t, p).All))
			if full {
				other := start(t, child("flood", "100000000"), &process.Options{Owner: owner, Budget: budget, RetainedBytes: 100 * retained})
				defer other.Abandon() // it waits for space until then
				testkit.WaitFor(t, testkit.Patience, func() error {
					if used := budget.Used(); used < 9*retained {
						return fmt.Errorf("%d bytes are used", used)
					}
					return nil
				})
			}
			var from, counted int64
			testkit.WaitFor(t, testkit.Patience, func() (err error) {
				from, err = testkit.Counted(file)
				return err
			})
			var err error
			testkit.WaitFor(t, testkit.Patience, func() error {
				counted, err = testkit.Counted(file)
				if err == nil && counted < from+20_000_000 {
					err = fmt.Errorf("%d bytes written of %d", counted-from, 20_000_000)
				}
				if used := budget.Used(); used > 11*retained {
					t.Fatalf("%d bytes are retained, the total is %d", used, 10*retained)
				}
				return err
			})
			owner.End(protocol.EndedBySessionExpired)
			<-p.Done()
			if counted, err = testkit.Counted(file); err != nil {
				t.Fatal(err)
			}
			r := p.Log.ReadBackground(0, nil)
			var got []byte
			for _, c := range r.Chunks {
				got = append(got, c.Data...)
			}
			begin := int64(foreground + r.DroppedBytes)
			if begin+int64(len(got)) < counted {
				t.Errorf("%d bytes before, %d dropped and %d retained of %d", foreground, r.DroppedBytes, len(got), counted)
			}
			if len(got) > 0 && string(got) != string(testkit.Pattern(begin + int64(len(got)))[begin:]) {
				t.Error("the bytes retained are not those written last")
			}
			if len(got) > retained || r.DroppedBytes == 0 || !r.Closed {
				t.Errorf("%d bytes retained, %d dropped, closed %v", len(got), r.DroppedBytes, r.Closed)
			}
		})
	}
}

// A client that takes nothing does not hold up what goes on in the background.
func TestBackgroundGoesOnWhenNobodyTakesTheOutput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "count")
	argv, env := testkit.Child("count", file)
	// The program may take longer to start than silence takes to close the process.
	script := `"$0" "$@" & while [ ! -s "$1" ]; do sleep 0.01; done; exit 3`
	p := start(t, process.Spec{Argv: append([]string{"/bin/sh", "-c", script}, argv...), Env: env},
		&process.Options{Owner: processtest.Owner(t, nil), RetainedBytes: 100_000, DrainTimeout: 300 * time.Millisecond})
	select {
	case <-p.Closed():
	case <-time.After(testkit.Patience):
		t.Fatal("not closed")
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		counted, err := testkit.Counted(file)
		if err == nil && counted < 10_000_000 {
			err = fmt.Errorf("%d bytes written", counted)
		}
		return err
	})
	r := p.Log.Read(0, nil)
	if !r.Closed || r.DroppedBytes > 0 || r.NextSeq < 4 {
		t.Errorf("the process's own output: closed %v, %d bytes dropped, next %d", r.Closed, r.DroppedBytes, r.NextSeq)
	}
}

// Release ends the reading of streams whose holder cannot be found.
func TestReleaseEndsTheBackground(t *testing.T) {
	p, err := process.Start(process.Spec{
		Argv: child("hold", "streams", "setsid").Argv, Env: child("hold").Env, Dir: "/",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := testkit.Descriptors(t)
	pid, err := strconv.Atoi(strings.TrimSpace(follow(t, p).All))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	if !p.Log.BackgroundOpen() || !testkit.Alive(pid) {
		t.Fatalf("held %v, alive %v", p.Log.BackgroundOpen(), testkit.Alive(pid))
	}
	p.Release()
	select {
	case <-p.Done():
	case <-time.After(testkit.Patience):
		t.Fatal("the streams are still read")
	}
	testkit.WaitFor(t, testkit.Patience, func() error { // a scan has one open for a moment
		if after := testkit.Descriptors(t); after > before-2 {
			return fmt.Errorf("%d descriptors, %d with the two streams", after, before)
		}
		return nil
	})
}

// A terminate that comes before closed ends what holds the streams, however short
// before; one that comes later does not.
func TestTerminateAboutTheTimeOfClosed(t *testing.T) {
	t.Parallel()
	for i := range 24 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			p := start(t, child("hold", "streams", "hup"), &process.Options{Owner: processtest.Owner(t, nil), DrainTimeout: 20 * time.Millisecond})
			pid := heldPid(t, p)
			time.Sleep(time.Duration(i) * time.Millisecond)
			late := p.Log.IsClosed()
			p.Terminate()
			follow(t, p)
			switch alive := testkit.Alive(pid); {
			case late && !alive:
				t.Error("a terminate after closed has killed")
			case alive && !p.Log.BackgroundOpen():
				t.Error("what lives does not hold the streams")
			}
		})
	}
}

// While something is being ended, silence does not close the process: nothing of it
// may be left after closed.
func TestQuietHoldersHaveTheTimeToEnd(t *testing.T) {
	p := start(t, shell(`trap '' TERM; sleep 1000 & trap 'exit 7' TERM; echo $!; wait`), &process.Options{Owner: processtest.Owner(t, nil)})
	pid := processtest.FirstPid(t, p)
	began := time.Now()
	const grace = time.Second
	p.TerminateGracefully(grace)
	if s := follow(t, p); s.Exit.ExitCode != 7 {
		t.Errorf("the leader has not ended by itself: %+v", s.Exit)
	}
	if took := time.Since(began); took < grace || p.Log.BackgroundOpen() || testkit.Alive(pid) {
		t.Errorf("closed after %v, held %v, alive %v", took, p.Log.BackgroundOpen(), testkit.Alive(pid))
	}
}
