//go:build linux

package model

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"execserver/protocol"
)

func (d *driver) start() (bool, error) {
	live := 0
	for _, m := range d.procs {
		if !m.hasClosed() {
			live++
		}
	}
	if live >= 8 {
		return false, nil
	}
	if d.random.IntN(10) == 0 {
		return true, d.failingStart()
	}
	m := &model{
		kind: kinds[d.random.IntN(len(kinds))], id: "p" + strconv.Itoa(len(d.procs)), startID: strconv.Itoa(d.random.IntN(1000)),
		size: protocol.TerminalSize{Rows: 24, Cols: 80}, asked: make(map[syscall.Signal]bool),
	}
	p := protocol.StartParams{
		ProcessID: m.id, StartID: &m.startID, Argv: m.argv, Cwd: protocol.OSPath("/"),
		Env: map[string]string{"PATH": "/usr/bin:/bin"}, TTY: m.tty, PipeStdin: m.stdin,
	}
	if m.tty && d.random.IntN(2) == 0 {
		m.size = d.anySize()
		p.Size = &m.size
	}
	d.mu.Lock()
	d.byID[m.id] = m
	d.mu.Unlock()
	if err := d.callOverCut(protocol.MethodStart, p, nil); err != nil {
		return false, err
	}
	d.procs = append(d.procs, m)
	return true, nil
}

// failingStart makes a start that the server refuses, or repeats one.
func (d *driver) failingStart() error {
	p := protocol.StartParams{Argv: []string{"/no/such"}, Cwd: protocol.OSPath("/"), Env: map[string]string{}}
	if m := d.any(); m != nil && d.random.IntN(2) == 0 {
		p.ProcessID = m.id
		if err := d.call(protocol.MethodStart, p, nil); code(err) != protocol.CodeInvalidRequest {
			return fmt.Errorf("start of an id in use: %v", err)
		}
		p.StartID = &m.startID
		return d.call(protocol.MethodStart, p, nil)
	}
	p.ProcessID = "none"
	if err := d.call(protocol.MethodStart, p, nil); code(err) != protocol.CodeInternal {
		return fmt.Errorf("start of a program that is not there: %v", err)
	}
	return nil
}

func (d *driver) anySize() protocol.TerminalSize {
	return protocol.TerminalSize{Rows: uint16(1 + d.random.IntN(1000)), Cols: uint16(1 + d.random.IntN(1000))}
}

func (d *driver) write() (bool, error) {
	m := d.pick(func(m *model) bool {
		// A terminal takes one byte, once its program is ready.
		return !m.tty || m.written.Len() == 0 && strings.HasPrefix(m.seen(), "R\n")
	})
	if m == nil || m.hasClosed() && d.random.IntN(4) > 0 {
		return false, nil
	}
	size := d.random.IntN(3000)
	switch {
	case m.tty:
		size = 1
	case d.random.IntN(20) == 0:
		size = 200_000 // more than is retained
	}
	d.nextWrite++
	text := strings.Repeat(fmt.Sprintf("<%s %d>", m.id, d.nextWrite), size)[:size]
	closedBefore, mayEnd := m.hasClosed(), m.mayEnd()
	var result protocol.WriteResult
	p := map[string]any{
		"processId": m.id, "writeId": strconv.Itoa(d.nextWrite), "chunk": base64.StdEncoding.EncodeToString([]byte(text)),
	}
	if err := d.callOverCut(protocol.MethodWrite, p, &result); err != nil {
		return false, err
	}
	want := []protocol.WriteStatus{protocol.WriteAccepted, protocol.WriteStdinClosed}
	switch {
	case !m.stdin && !m.tty, m.stdinClosed, closedBefore:
		want = want[1:]
	case !mayEnd:
		want = want[:1]
	}
	if result.Status != want[0] && result.Status != want[len(want)-1] {
		return false, fmt.Errorf("process %s (%q): write is %s, want %v", m.id, m.argv, result.Status, want)
	}
	if result.Status == protocol.WriteAccepted {
		if m.written.Len() == 0 {
			m.sizeAt = m.size
		}
		m.written.WriteString(text)
		if size > 100_000 && d.random.IntN(2) == 0 {
			return true, d.endInput(m)
		}
	}
	return true, nil
}

func (d *driver) closeStdin() (bool, error) {
	m := d.any()
	if m == nil {
		return false, nil
	}
	return true, d.endInput(m)
}

func (d *driver) endInput(m *model) error {
	err := d.callOverCut(protocol.MethodCloseStdin, protocol.CloseStdinParams{ProcessID: m.id}, nil)
	if m.tty {
		if code(err) != protocol.CodeInvalidRequest {
			return fmt.Errorf("closeStdin of a terminal: %v", err)
		}
		return nil
	}
	m.stdinClosed = m.stdinClosed || m.stdin
	return err
}

func (d *driver) resize() (bool, error) {
	m := d.pick(func(m *model) bool { return m.written.Len() == 0 })
	if m == nil {
		return false, nil
	}
	size := d.anySize()
	err := d.callOverCut(protocol.MethodResize, protocol.ResizeParams{ProcessID: m.id, Size: size}, nil)
	if !m.tty {
		if code(err) != protocol.CodeInvalidRequest {
			return false, fmt.Errorf("resize without a terminal: %v", err)
		}
		return true, nil
	}
	m.size = size
	return true, err
}

func (d *driver) signal() (bool, error) {
	m := d.any()
	if m == nil {
		return false, nil
	}
	names := []string{"SIGTERM", "interrupt", "kill", "USR1", "SIGHUP", "SIGSTOP", "SIGCONT"}
	numbers := []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGKILL, syscall.SIGUSR1, syscall.SIGHUP, syscall.SIGSTOP, syscall.SIGCONT}
	i := d.random.IntN(len(names))
	m.ask(numbers[i])
	m.stopped = m.stopped && numbers[i] != syscall.SIGCONT || numbers[i] == syscall.SIGSTOP
	return true, d.callOverCut(protocol.MethodSignal, protocol.SignalParams{ProcessID: m.id, Signal: names[i]}, nil)
}

func (d *driver) terminate() (bool, error) {
	m := d.any()
	if m == nil {
		return false, nil
	}
	if d.random.IntN(2) == 0 {
		return true, d.kill(m)
	}
	m.ask(syscall.SIGTERM)
	m.ask(syscall.SIGKILL)
	return true, d.end(m, protocol.TerminateParams{ProcessID: m.id, Mode: protocol.TerminateGraceful, TimeoutMs: new(d.random.Uint64N(50))})
}

func (d *driver) kill(m *model) error {
	m.ask(syscall.SIGKILL)
	return d.end(m, protocol.TerminateParams{ProcessID: m.id})
}

func (d *driver) end(m *model, p protocol.TerminateParams) error {
	closed := m.hasClosed()
	var result protocol.TerminateResult
	if err := d.call(protocol.MethodTerminate, p, &result); err != nil {
		return err
	}
	if result.Running && closed {
		return fmt.Errorf("process %s is running after it has closed", m.id)
	}
	return nil
}

func (d *driver) wait() (bool, error) {
	m := d.any()
	if m == nil {
		return false, nil
	}
	closed := m.hasClosed()
	var result struct {
		Exited, Closed bool
		ExitCode       *int
	}
	err := d.call(protocol.MethodWait, protocol.WaitParams{ProcessID: m.id, WaitMs: new(d.random.Uint64N(5))}, &result)
	switch {
	case err != nil:
		return false, err
	case result.Exited != (result.ExitCode != nil), closed && !result.Closed, result.Closed && !result.Exited:
		return false, fmt.Errorf("process %s, closed %v: wait says %+v", m.id, closed, result)
	case closed && *result.ExitCode != m.code:
		return false, fmt.Errorf("process %s ended with code %d, wait says %d", m.id, m.code, *result.ExitCode)
	case result.Exited && !m.mayEnd():
		return false, fmt.Errorf("process %s (%q) has ended, and nobody has ended it", m.id, m.argv)
	}
	return true, nil
}

func (d *driver) read() (bool, error) {
	m := d.any()
	if m == nil {
		return false, nil
	}
	last := m.seq()
	after := d.random.Uint64N(last + 2)
	var result struct {
		Chunks         []params
		NextSeq        uint64
		Exited, Closed bool
		ExitCode       *int
	}
	p := protocol.ReadParams{ProcessID: m.id, AfterSeq: &after, WaitMs: new(d.random.Uint64N(3))}
	if err := d.call(protocol.MethodRead, p, &result); err != nil {
		return false, err
	}
	for i, c := range result.Chunks {
		if c.Seq <= after || i > 0 && c.Seq <= result.Chunks[i-1].Seq {
			return false, fmt.Errorf("process %s: chunk %d in an answer after %d", m.id, c.Seq, after)
		}
	}
	if result.NextSeq <= last || result.Exited != (result.ExitCode != nil) {
		return false, fmt.Errorf("process %s: event %d was seen, read says %+v", m.id, last, result)
	}
	return true, nil
}

func (d *driver) snapshot() (bool, error) {
	m := d.any()
	if m == nil {
		return false, nil
	}
	type stream struct {
		Head, Tail               []byte
		OmittedBytes, TotalBytes int
	}
	var result struct {
		Running, Truncated       bool
		NextSeq                  uint64
		Stdout, Stderr, Terminal *stream
	}
	m.mu.Lock()
	last, seen := m.last, m.out.Len()
	m.mu.Unlock()
	if err := d.call(protocol.MethodSnapshot, protocol.SnapshotParams{ProcessID: m.id}, &result); err != nil {
		return false, err
	}
	if m.tty != (result.Terminal != nil) || m.tty == (result.Stdout != nil) || m.tty == (result.Stderr != nil) {
		return false, fmt.Errorf("process %s (%q): streams of another kind", m.id, m.argv)
	}
	want, total := m.output(m), 0
	for _, s := range []*stream{result.Stdout, result.Stderr, result.Terminal} {
		if s == nil || s.TotalBytes == 0 {
			continue
		}
		total += s.TotalBytes
		switch end := len(s.Head) + s.OmittedBytes; {
		case end+len(s.Tail) != s.TotalBytes, s.TotalBytes > len(want), s.OmittedBytes == 0 && len(s.Tail) > 0:
			return false, fmt.Errorf("process %s: head %d, omitted %d, tail %d, total %d of %d",
				m.id, len(s.Head), s.OmittedBytes, len(s.Tail), s.TotalBytes, len(want))
		case want[:len(s.Head)] != string(s.Head) || want[end:s.TotalBytes] != string(s.Tail):
			return false, fmt.Errorf("process %s: a snapshot of something else", m.id)
		}
	}
	if total < seen || result.NextSeq <= last {
		return false, fmt.Errorf("process %s: %d bytes and event %d were seen, the snapshot has %d and %d", m.id, seen, last, total, result.NextSeq)
	}
	return true, nil
}

func (d *driver) list() (bool, error) {
	var result struct {
		Processes []struct {
			ProcessID, State string
			Tty, StdinClosed bool
			ExitCode         *int
		}
	}
	closed := make([]bool, len(d.procs))
	for i, m := range d.procs {
		closed[i] = m.hasClosed()
	}
	if err := d.call(protocol.MethodList, nil, &result); err != nil {
		return false, err
	}
	if len(result.Processes) != len(d.procs) {
		return false, fmt.Errorf("%d processes are listed of %d", len(result.Processes), len(d.procs))
	}
	for i, p := range result.Processes {
		m := d.procs[i]
		switch {
		case p.ProcessID != m.id || p.Tty != m.tty:
			return false, fmt.Errorf("process %s is listed as %+v", m.id, p)
		case closed[i] && p.State != string(protocol.StateClosed), (p.State == string(protocol.StateRunning)) != (p.ExitCode == nil):
			return false, fmt.Errorf("process %s, closed %v, is listed as %+v", m.id, closed[i], p)
		case (m.stdinClosed || !m.stdin && !m.tty) && !p.StdinClosed:
			return false, fmt.Errorf("process %s has no stdin and is listed as %+v", m.id, p)
		}
	}
	return true, nil
}

// ack acknowledges all events received, or half of them.
func (d *driver) ack() (bool, error) {
	if !d.acks {
		return false, nil
	}
	for _, m := range d.procs {
		seq := m.seq()
		if d.random.IntN(4) == 0 {
			seq /= 2
		}
		if err := d.conn.Notify(protocol.MethodAck, protocol.AckParams{ProcessID: m.id, Seq: seq}); err != nil {
			return false, err
		}
	}
	return true, nil
}

// cut breaks the connection and resumes the session.
func (d *driver) cut() (bool, error) {
	if d.random.IntN(2) == 0 { // what it has brought is not taken
		d.tap.hold(true)
		time.Sleep(d.pause())
	}
	return true, d.reconnect()
}

// hold keeps the owner from reading events and answers for a while.
func (d *driver) hold() (bool, error) {
	tap := d.tap
	tap.hold(true)
	time.AfterFunc(d.pause(), func() { tap.hold(false) })
	return true, nil
}
