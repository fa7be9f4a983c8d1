//go:build unix

package process_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/internal/process"
	"execserver/internal/testkit"
	"execserver/internal/testkit/processtest"
	"execserver/protocol"
)

// hasOutput waits until the process has printed text.
func hasOutput(t *testing.T, p *process.Process, text string) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		var got strings.Builder
		for _, c := range p.Log.Read(0, nil).Chunks {
			got.Write(c.Data)
		}
		if !strings.Contains(got.String(), text) {
			return fmt.Errorf("no %q in the output %q", text, got.String())
		}
		return nil
	})
}

func TestWritesArriveInOrder(t *testing.T) {
	spec := child("cat")
	spec.PipeStdin = true
	p := start(t, spec, nil)
	var want strings.Builder
	for i := range 5000 {
		line := fmt.Sprintf("line %d %s\n", i, strings.Repeat("x", i%100))
		want.WriteString(line)
		if status := write(t, p, line); status != protocol.WriteAccepted {
			t.Fatalf("write %d: %s", i, status)
		}
	}
	hasOutput(t, p, "line 4999 "+strings.Repeat("x", 99)+"\n") // cat may write a line in two parts
	p.Terminate()
	if got := follow(t, p).Output["stdout"]; got != want.String() {
		t.Errorf("%d bytes came back, %d were written", len(got), want.Len())
	}
}

func TestWriteIDsAreAppliedOnce(t *testing.T) {
	spec := child("cat")
	spec.PipeStdin = true
	p := start(t, spec, nil)
	for _, id := range []string{"1", "2", "1", "2", "3", "1"} {
		status, _, _ := p.Write([]byte("<"+id+">"), &id, nil, func(wait func()) { wait() })
		if status != protocol.WriteAccepted {
			t.Fatalf("write %s: %s", id, status)
		}
	}
	hasOutput(t, p, "<3>")
	p.Terminate()
	if got := follow(t, p).All; got != "<1><2><3>" {
		t.Errorf("output %q", got)
	}
}

// The memory for writeIds is bounded while the process lives, and small when it has closed:
// a write may have been the last one, and be sent again because its answer was lost.
func TestWriteIDsAreForgotten(t *testing.T) {
	spec := child("cat")
	spec.PipeStdin = true
	p := start(t, spec, nil)
	id := func(i int) *string { return new(fmt.Sprintf("%0250d", i)) }
	const writes = 2000
	for i := range writes {
		if status, _, _ := p.Write(nil, id(i), nil, nil); status != protocol.WriteAccepted {
			t.Fatalf("write %d: %s", i, status)
		}
	}
	if ids, cost := p.RememberedWrites(); cost > 256<<10 || cost < 255<<10 || ids != cost/(250+64) {
		t.Errorf("%d ids are remembered and cost %d bytes", ids, cost)
	}
	for i, text := range map[int]string{0: "again", writes - 1: "lost"} {
		if status, _, _ := p.Write([]byte(text), id(i), nil, nil); status != protocol.WriteAccepted {
			t.Fatalf("write %d again: %s", i, status)
		}
	}
	hasOutput(t, p, "again")
	p.Terminate()
	if got := follow(t, p).All; got != "again" {
		t.Errorf("output %q", got)
	}
	if ids, cost := p.RememberedWrites(); cost > 8<<10 || ids != (8<<10)/(250+64) {
		t.Errorf("%d ids of a closed process are remembered and cost %d bytes", ids, cost)
	}
	for i, want := range map[int]protocol.WriteStatus{writes - 1: protocol.WriteAccepted, writes / 2: protocol.WriteStdinClosed} {
		if status, _, _ := p.Write(nil, id(i), nil, nil); status != want {
			t.Errorf("write %d to a closed process: %s, want %s", i, status, want)
		}
	}
}

func TestWriteToNobody(t *testing.T) {
	if status := write(t, start(t, child("idle"), nil), "x"); status != protocol.WriteStdinClosed {
		t.Errorf("without pipeStdin: %s", status)
	}
	for _, tty := range []bool{false, true} {
		spec := child("exit", "0")
		spec.PipeStdin, spec.TTY = true, tty
		p := start(t, spec, nil)
		follow(t, p)
		if status := write(t, p, "x"); status != protocol.WriteStdinClosed {
			t.Errorf("tty=%v, after the exit: %s", tty, status)
		}
	}
	spec := child("close0")
	spec.PipeStdin = true
	p := start(t, spec, nil)
	hasOutput(t, p, "closed")
	if status := write(t, p, "x"); status != protocol.WriteStdinClosed {
		t.Errorf("after the child closed stdin: %s", status)
	}
}

// TestInputOutlivesTheExit has a descendant read the input of a leader that has exited. It
// gets every write that was accepted before the exit, and then the end of the input, for which
// the process otherwise would not close.
func TestInputOutlivesTheExit(t *testing.T) {
	t.Parallel()
	spec := toTheEnd(shell("read go; exec 3<&0; cat <&3 & exit 0"))
	spec.PipeStdin = true
	p := start(t, spec, nil)
	data := strings.Repeat("0123456789abcde\n", 64<<10)
	if status := write(t, p, "go\n"+data); status != protocol.WriteAccepted {
		t.Fatalf("write: %s", status)
	}
	p.Log.WaitExit(t.Context())
	if status := write(t, p, "x"); status != protocol.WriteStdinClosed {
		t.Errorf("after the exit, while a descendant has the pipe: %s", status)
	}
	if got := follow(t, p).Output["stdout"]; got != data {
		t.Errorf("the descendant read %d bytes of %d", len(got), len(data))
	}
}

// A child that does not read lets a bounded number of bytes queue; then writes
// wait, and can be given up; nothing that was accepted is lost or reordered.
func TestWriteWaitsForAChildThatDoesNotRead(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	spec := child("drain", gate)
	spec.PipeStdin = true
	p := start(t, spec, nil)
	hasOutput(t, p, "ready")
	block := strings.Repeat("0123456789abcdef", 64<<10) // 1 MiB
	accepted := 0
	for {
		status, cancelled, _ := p.Write([]byte(block), nil, nil, nil)
		if cancelled {
			break
		}
		if status != protocol.WriteAccepted {
			t.Fatalf("write %d: %s", accepted, status)
		}
		if accepted++; accepted > 100 {
			t.Fatal("the queue has no bound")
		}
	}
	cancel := make(chan struct{})
	close(cancel)
	waited := false
	_, cancelled, _ := p.Write([]byte(block), nil, cancel, func(wait func()) { waited = true; wait() })
	if !waited || !cancelled {
		t.Errorf("write to a full queue: waited %v, cancelled %v", waited, cancelled)
	}
	done := make(chan protocol.WriteStatus)
	go func() {
		status, _, _ := p.Write([]byte("last"), nil, nil, func(wait func()) { wait() })
		done <- status
	}()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan processtest.Story)
	go func() { read <- follow(t, p) }()
	select {
	case status := <-done:
		if status != protocol.WriteAccepted {
			t.Errorf("waiting write: %s", status)
		}
	case <-time.After(testkit.Patience):
		t.Fatal("the waiting write never returned")
	}
	testkit.WaitFor(t, testkit.Patience, func() error {
		if r := p.Log.Read(p.Log.LastSeq()-1, nil); len(r.Chunks) == 0 || !strings.HasSuffix(string(r.Chunks[0].Data), "last") {
			return fmt.Errorf("the last write has not come back")
		}
		return nil
	})
	p.Terminate()
	got := (<-read).Output["stdout"]
	want := "ready\n" + strings.Repeat(block, accepted) + "last"
	if got != want {
		t.Errorf("%d bytes came back, want %d", len(got), len(want))
	}
}

// Input that a terminal's child never read must not keep anything busy or open
// after its end.
func TestUnreadTerminalInputAtExit(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "go")
	spec := shell(`stty raw -echo; echo ready; until test -e "$0"; do sleep 0.01; done`)
	spec.Argv, spec.TTY = append(spec.Argv, gate), true
	p := start(t, spec, nil)
	hasOutput(t, p, "ready")
	if status := write(t, p, strings.Repeat("x", 200_000)); status != protocol.WriteAccepted {
		t.Fatal(status)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	follow(t, p)
	before := cpuTime(t)
	time.Sleep(200 * time.Millisecond) // the time in which nothing should happen
	if used := cpuTime(t) - before; used > 100*time.Millisecond {
		t.Errorf("%v of CPU time used after the end", used)
	}
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func TestTerminalInput(t *testing.T) {
	spec := shell("read line; echo got $line")
	spec.TTY = true
	p := start(t, spec, nil)
	if status := write(t, p, "hello\n"); status != protocol.WriteAccepted {
		t.Fatal(status)
	}
	if got, want := follow(t, p).Output["pty"], "hello\r\ngot hello\r\n"; got != want {
		t.Errorf("terminal shows %q, want %q", got, want)
	}
	p = start(t, process.Spec{Argv: []string{"/bin/cat"}, TTY: true}, nil)
	write(t, p, "\x04")
	if s := follow(t, p); s.Exit.ExitCode != 0 || s.All != "" {
		t.Errorf("end of input gave code %d and %q", s.Exit.ExitCode, s.All)
	}
	p = start(t, process.Spec{Argv: []string{"/bin/cat"}, TTY: true}, nil)
	write(t, p, "\x03")
	if s := follow(t, p); s.Exit.ExitCode != 130 {
		t.Errorf("^C gave code %d", s.Exit.ExitCode)
	}
}
