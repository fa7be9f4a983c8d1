package process_test

import (
	"errors"
	"syscall"
	"testing"

	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/internal/testkit"
	"execserver/internal/testkit/processtest"
	"execserver/protocol"
)

// kinds are the kinds of unrelated processes that can reuse the pid of an exited leader.
var kinds = map[string]bool{"group": false, "session": true}

// TestFinishedProcessSignalsNobody: the kernel gives the number of a process that has closed
// to a stranger.
func TestFinishedProcessSignalsNobody(t *testing.T) {
	for name, session := range kinds {
		t.Run(name, func(t *testing.T) {
			owner := processtest.Ownership(t, nil).NewOwner()
			p := start(t, child("exit", "0"), &process.Options{Owner: owner, Name: "p"})
			follow(t, p)
			stranger := testkit.Stranger(t, p.Pid(), session)
			if err := p.Signal(syscall.SIGKILL); !errors.Is(err, process.ErrFinished) {
				t.Errorf("Signal: %v, want ErrFinished", err)
			}
			p.TerminateGracefully(0)
			p.Terminate()
			owner.End(protocol.EndedBySessionExpired)
			owner.Wait()
			if !testkit.Unharmed(t, stranger) {
				t.Error("a signal for a finished process has killed a stranger")
			}
		})
	}
}

// TestReapedLeaderSignalsItsOwn: the kernel gives the number of a leader to a stranger while a
// descendant in a session of its own keeps the process from closing.
func TestReapedLeaderSignalsItsOwn(t *testing.T) {
	for _, sole := range []bool{false, true} {
		for name, session := range kinds {
			t.Run(name, func(t *testing.T) {
				var opts *process.Options
				if !sole {
					opts = &process.Options{Owner: processtest.Owner(t, nil), Name: "p"}
				}
				p := start(t, toTheEnd(child("hold", "streams", "setsid")), opts)
				held := heldPid(t, p)
				defer func() { _ = syscall.Kill(held, syscall.SIGKILL) }()
				stranger := testkit.Stranger(t, p.Pid(), session)
				for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
					if err := p.Signal(sig); err != nil {
						t.Errorf("Signal: %v", err)
					}
				}
				p.TerminateGracefully(0)
				follow(t, p)
				if !testkit.Unharmed(t, stranger) {
					t.Error("the end of a process has killed a stranger")
				}
			})
		}
	}
}

// TestReapedLeaderSignalsItsGroup: what is left of a group gets its signals after the leader
// has been reaped.
func TestReapedLeaderSignalsItsGroup(t *testing.T) {
	for name, opts := range map[string]*ownership.Options{"library": nil, "subreaper": {Subreaper: true}} {
		t.Run(name, func(t *testing.T) {
			if opts != nil && !inFreshProgram(t, "EXEC_SERVER_TEST=1") {
				return
			}
			owner := processtest.Owner(t, processtest.Ownership(t, opts))
			p := start(t, toTheEnd(child("hold", "streams")), &process.Options{Owner: owner, Name: "p"})
			held := heldPid(t, p)
			if err := p.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			follow(t, p)
			testkit.Gone(t, held)
		})
	}
}

// TestDeadForegroundIsNotSignaled: a terminal goes on naming a group that is gone, and a
// stranger gets the number.
func TestDeadForegroundIsNotSignaled(t *testing.T) {
	for name, session := range kinds {
		t.Run(name, func(t *testing.T) {
			spec := child("foreground")
			spec.TTY = true
			p := start(t, spec, nil)
			job := processtest.FirstPid(t, p)
			stranger := testkit.Stranger(t, job, session)
			if err := p.SignalForeground(syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			if !testkit.Unharmed(t, stranger) {
				t.Error("a signal for the foreground of a terminal has killed a stranger")
			}
		})
	}
}
