//go:build unix

package process_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execserver/internal/output"
	"execserver/internal/process"
	"execserver/internal/testkit"
	"execserver/internal/testkit/processtest"
	"execserver/protocol"
)

func TestOutputIsNumberedBeforeExited(t *testing.T) {
	want := []output.EventKind{output.Output, output.Exited, output.Closed}
	const rounds = 40
	for _, tty := range []bool{false, true} {
		t.Run(fmt.Sprintf("tty=%v", tty), func(t *testing.T) {
			for range rounds {
				spec := child("echo", "hi")
				spec.TTY = tty
				s := follow(t, start(t, spec, nil))
				if diff := cmp.Diff(want, s.Kinds()); diff != "" {
					t.Fatalf("order of events (-want +got):\n%s", diff)
				}
				if got := strings.TrimSpace(s.All); got != "hi" {
					t.Fatalf("output %q", s.All)
				}
			}
		})
	}
}

// Every byte that the child's write returned for is delivered, although the
// child is killed while it writes as fast as it can.
func TestTerminateLosesNothingWritten(t *testing.T) {
	const rounds = 5
	for _, tty := range []bool{false, true} {
		t.Run(fmt.Sprintf("tty=%v", tty), func(t *testing.T) {
			for range rounds {
				file := filepath.Join(t.TempDir(), "count")
				spec := child("count", file)
				spec.TTY = tty
				if tty {
					// Output processing would change the bytes.
					spec = shell(`stty -opost; exec "$0" "$1"`)
					argv, env := testkit.Child("count", file)
					spec.Argv, spec.Env, spec.TTY = append(spec.Argv, argv...), env, true
				}
				p := start(t, spec, nil)
				testkit.WaitFor(t, testkit.Patience, func() error {
					_, err := testkit.Counted(file)
					return err
				})
				if !p.Terminate() {
					t.Error("Terminate says that the process was not running")
				}
				s := follow(t, p)
				counted, err := testkit.Counted(file)
				if err != nil {
					t.Fatal(err)
				}
				got := s.Output["stdout"] + s.Output["pty"]
				if int64(len(got)) < counted {
					t.Fatalf("%d bytes delivered, the child counted %d", len(got), counted)
				}
				if got != string(testkit.Pattern(int64(len(got)))) {
					t.Fatal("the bytes are not those written")
				}
				if s.Exit.ExitCode != 137 {
					t.Errorf("exit code %d, want 137", s.Exit.ExitCode)
				}
			}
		})
	}
}

func TestExitCodes(t *testing.T) {
	for _, tty := range []bool{false, true} {
		for _, code := range []int{0, 1, 3, 127, 255} {
			spec := child("exit", strconv.Itoa(code))
			spec.TTY = tty
			if s := follow(t, start(t, spec, nil)); s.Exit.ExitCode != code {
				t.Errorf("tty=%v: exit(%d) gave code %d", tty, code, s.Exit.ExitCode)
			}
		}
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, 40} {
			spec := shell("kill -" + strconv.Itoa(int(sig)) + " $$")
			spec.TTY = tty
			if s := follow(t, start(t, spec, nil)); s.Exit.ExitCode != 128+int(sig) {
				t.Errorf("tty=%v: death by signal %d gave code %d", tty, sig, s.Exit.ExitCode)
			}
		}
	}
}

// heldPid reads the process id that the child program "hold" prints.
func heldPid(t *testing.T, p *process.Process) int {
	t.Helper()
	var pid int
	testkit.WaitFor(t, testkit.Patience, func() (err error) {
		r := p.Log.Read(0, nil)
		if r.Exit == nil || len(r.Chunks) == 0 {
			return fmt.Errorf("leader has not exited: %+v", r)
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(r.Chunks[0].Data)))
		return err
	})
	return pid
}

func TestDescendantHoldsTheStreams(t *testing.T) {
	p := start(t, toTheEnd(child("hold", "streams", "hup")), nil)
	pid := heldPid(t, p)
	select {
	case <-p.Closed():
		t.Fatal("closed although a descendant holds the streams")
	default:
	}
	if !testkit.Alive(pid) {
		t.Fatal("the descendant is gone")
	}
	if p.Terminate() {
		t.Error("Terminate says running although the leader has exited")
	}
	s := follow(t, p)
	want := []output.EventKind{output.Output, output.Exited, output.Closed}
	if diff := cmp.Diff(want, s.Kinds()); diff != "" || s.Exit.ExitCode != 7 {
		t.Errorf("code %d, order of events (-want +got):\n%s", s.Exit.ExitCode, diff)
	}
	testkit.Gone(t, pid)
}

// A descendant that left the group cannot keep a terminated process open.
func TestTerminateGivesUpStreamsHeldOutsideTheGroup(t *testing.T) {
	p := start(t, toTheEnd(child("hold", "streams", "setsid")), nil)
	pid := heldPid(t, p)
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	p.Terminate()
	follow(t, p)
}

// The released client terminates after every closed; what a command left in the
// background without its streams survives that, and dies with its owner.
func TestTerminateAfterClosedKillsNothing(t *testing.T) {
	owner := processtest.Ownership(t, nil).NewOwner()
	p := start(t, child("hold"), &process.Options{Owner: owner, Name: "held"})
	s := follow(t, p)
	pid, err := strconv.Atoi(strings.TrimSpace(s.All))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if p.Terminate() {
			t.Error("Terminate says running after closed")
		}
	}
	if !testkit.Alive(pid) {
		t.Fatal("the background process is gone")
	}
	list := owner.Background()
	if len(list) != 1 || list[0].Pid != pid || list[0].Name != "held" {
		t.Errorf("Background is %+v, want process %d", list, pid)
	}
	owner.End(protocol.EndedBySessionExpired)
	owner.Wait()
	if testkit.Alive(pid) {
		t.Error("the background process has outlived its owner")
	}
	if list := owner.Background(); len(list) > 0 {
		t.Errorf("Background is %+v after the end of the owner", list)
	}
}

// A process that is being started while its owner ends is either refused or
// ended, too.
func TestStartWhileTheOwnerEnds(t *testing.T) {
	o := processtest.Ownership(t, nil)
	for range 30 {
		owner := o.NewOwner()
		started := make(chan *process.Process)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					p, err := process.Start(process.Spec{Argv: []string{"/bin/sleep", "100"}, Dir: "/"}, &process.Options{Owner: owner})
					if err != nil {
						return
					}
					started <- p
				}
			})
		}
		procs := []*process.Process{<-started}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			owner.End(protocol.EndedByServerShutdown)
			wg.Wait()
			close(started)
		}()
		for p := range started {
			procs = append(procs, p)
		}
		<-ended
		owner.Wait()
		for _, p := range procs {
			if testkit.Alive(p.Pid()) {
				t.Errorf("process %d is alive", p.Pid())
			}
			<-p.Closed()
			p.Release()
		}
	}
}

func TestInterrupt(t *testing.T) {
	for _, tty := range []bool{false, true} {
		spec := shell("echo ready; exec sleep 100")
		spec.TTY = tty
		p := start(t, spec, nil)
		testkit.WaitFor(t, testkit.Patience, func() error {
			if r := p.Log.Read(0, nil); len(r.Chunks) == 0 {
				return fmt.Errorf("no output yet")
			}
			return nil
		})
		if err := p.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if s := follow(t, p); s.Exit.ExitCode != 130 {
			t.Errorf("tty=%v: code %d", tty, s.Exit.ExitCode)
		}
		if err := p.Signal(syscall.SIGINT); !errors.Is(err, process.ErrFinished) {
			t.Errorf("signal after the end: %v", err)
		}
	}
}

func TestNothingLeaks(t *testing.T) {
	run := func() {
		for range 10 {
			for _, tty := range []bool{false, true} {
				spec := child("echo", "hi")
				spec.TTY, spec.PipeStdin = tty, true
				p, err := process.Start(process.Spec{Argv: spec.Argv, Env: spec.Env, Dir: "/", TTY: tty, PipeStdin: true}, nil)
				if err != nil {
					t.Fatal(err)
				}
				follow(t, p)
				p.Release()
			}
			_, err := process.Start(process.Spec{Argv: []string{"/nonexistent"}, Dir: "/"}, nil)
			if err == nil {
				t.Fatal("started /nonexistent")
			}
		}
	}
	run() // what is made once
	before := testkit.Descriptors(t)
	run()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if after := testkit.Descriptors(t); after > before {
			return fmt.Errorf("%d descriptors, %d before", after, before)
		}
		return nil
	})
	if zombies := testkit.Zombies(t); len(zombies) > 0 {
		t.Errorf("zombies: %s", zombies)
	}
}
