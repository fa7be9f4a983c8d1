//go:build unix

package process_test

import (
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"execserver/internal/process"
	"execserver/internal/testkit"
	"execserver/protocol"
)

// The exit record is correct, with pipes and on a terminal.
func TestExitRecord(t *testing.T) {
	output := func(t *testing.T, p *process.Process) {
		testkit.WaitFor(t, testkit.Patience, func() error {
			if r := p.Log.Read(0, nil); len(r.Chunks) == 0 {
				return errors.New("no output yet")
			}
			return nil
		})
	}
	limited := func(spec process.Spec, l process.Limits) process.Spec {
		spec.Limits = l
		return spec
	}
	for _, test := range []struct {
		name string
		spec process.Spec
		end  func(*testing.T, *process.Process)
		want protocol.ExitRecord
	}{
		{"code", shell("exit 3"), nil, protocol.ExitRecord{ExitCode: 3, EndedBy: "self"}},
		{"own signal", shell("kill -TERM $$"), nil, protocol.ExitRecord{ExitCode: 143, Signal: "SIGTERM", EndedBy: "self"}},
		{"real-time signal", shell("kill -40 $$"), nil, protocol.ExitRecord{ExitCode: 168, Signal: "SIG40", EndedBy: "self"}},
		{
			"terminate", shell("echo ready; exec sleep 100"),
			func(t *testing.T, p *process.Process) { output(t, p); p.Terminate() },
			protocol.ExitRecord{ExitCode: 137, Signal: "SIGKILL", EndedBy: "client"},
		},
		{
			"interrupt", shell("echo ready; exec sleep 100"),
			func(t *testing.T, p *process.Process) { output(t, p); _ = p.Signal(syscall.SIGINT) },
			protocol.ExitRecord{ExitCode: 130, Signal: "SIGINT", EndedBy: "client"},
		},
		{
			"graceful", shell("trap 'exit 4' TERM; echo ready; while :; do sleep 0.05; done"),
			func(t *testing.T, p *process.Process) { output(t, p); p.TerminateGracefully(testkit.Patience) },
			protocol.ExitRecord{ExitCode: 4, EndedBy: "client"},
		},
		{
			"graceful, in vain", shell("trap '' TERM; echo ready; while :; do sleep 0.05; done"),
			func(t *testing.T, p *process.Process) { output(t, p); p.TerminateGracefully(100 * time.Millisecond) },
			protocol.ExitRecord{ExitCode: 137, Signal: "SIGKILL", EndedBy: "client"},
		},
		{
			"exits before it is terminated", toTheEnd(child("hold", "streams", "hup")),
			func(t *testing.T, p *process.Process) { heldPid(t, p); p.Terminate() },
			protocol.ExitRecord{ExitCode: 7, EndedBy: "self"},
		},
		{
			"timeout", limited(shell("exec sleep 100"), process.Limits{Timeout: 50 * time.Millisecond}), nil,
			protocol.ExitRecord{ExitCode: 143, Signal: "SIGTERM", EndedBy: "timeout"},
		},
		{
			"output limit", limited(child("flood", "100000000000"), process.Limits{MaxOutputBytes: 1 << 20}), nil,
			protocol.ExitRecord{ExitCode: 137, Signal: "SIGKILL", EndedBy: "outputLimit"},
		},
		{"output at its limit", limited(child("flood", "1000000"), process.Limits{MaxOutputBytes: 1000000}), nil, protocol.ExitRecord{EndedBy: "self"}},
	} {
		for _, tty := range []bool{false, true} {
			if tty && test.name == "output at its limit" {
				continue // a terminal may change what is written
			}
			spec := test.spec
			spec.TTY = tty
			p := start(t, spec, nil)
			if test.end != nil {
				test.end(t, p)
			}
			s := follow(t, p)
			if diff := cmp.Diff(test.want, s.Exit, cmpopts.IgnoreFields(protocol.ExitRecord{}, "Rusage")); diff != "" {
				t.Errorf("%s, tty=%v (-want +got):\n%s", test.name, tty, diff)
			}
			if s.Exit.Rusage == nil {
				t.Errorf("%s, tty=%v: no rusage", test.name, tty)
			}
			if r := p.Log.Read(0, nil); cmp.Diff(&s.Exit, r.Exit) != "" {
				t.Errorf("%s, tty=%v: process/read tells %+v, the event %+v", test.name, tty, r.Exit, s.Exit)
			}
		}
	}
}

// A limit of the output lets everything through that was written before the end.
func TestOutputLimitLosesNothing(t *testing.T) {
	spec := child("count", t.TempDir()+"/count")
	spec.Limits.MaxOutputBytes = 300_000
	s := follow(t, start(t, spec, nil))
	counted, err := testkit.Counted(spec.Argv[1])
	if err != nil {
		t.Fatal(err)
	}
	if got := int64(len(s.All)); got < counted || got < 300_000 {
		t.Errorf("%d bytes delivered, the child counted %d", got, counted)
	}
	if s.Exit.EndedBy != protocol.EndedByOutputLimit {
		t.Errorf("ended by %q", s.Exit.EndedBy)
	}
}

// The time that a timeout gives to descendants that ignore SIGTERM ends, too.
func TestTimeoutEndsTheTree(t *testing.T) {
	for timeout := 500 * time.Millisecond; ; timeout *= 2 {
		spec := toTheEnd(shell("trap '' TERM; sleep 1000 & echo $!"))
		spec.Limits.Timeout = timeout
		before := time.Now()
		s := follow(t, start(t, spec, nil))
		took := time.Since(before)
		if s.All == "" && s.Exit.EndedBy == protocol.EndedByTimeout {
			continue // the shell had yet to begin
		}
		if took < timeout+process.TimeoutGrace {
			t.Errorf("closed after %v, although the descendant ignores SIGTERM", took)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(s.All))
		if err != nil {
			t.Fatal(err)
		}
		testkit.Gone(t, pid)
		return
	}
}

func TestRusage(t *testing.T) {
	s := follow(t, start(t, child("use", "400", "300"), nil))
	u := s.Exit.Rusage
	if u == nil || u.UserMs+u.SystemMs < 200 || u.UserMs+u.SystemMs > 60_000 {
		t.Errorf("%+v after 300 ms of work", u)
	}
	if u != nil && (u.MaxRSSBytes < 400<<20 || u.MaxRSSBytes > 4<<30) {
		t.Errorf("%d bytes after the use of 400 MiB", u.MaxRSSBytes)
	}
	// The kernel charges a child with the memory of this program, which it
	// shared for a moment.
	if s := follow(t, start(t, shell("true"), nil)); s.Exit.Rusage.MaxRSSBytes != 0 {
		t.Errorf("a small program has used %d bytes", s.Exit.Rusage.MaxRSSBytes)
	}
}
