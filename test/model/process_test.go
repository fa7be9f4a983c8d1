//go:build linux

package model

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"

	"execserver/protocol"
)

// kind is a program with known output and a known end.
type kind struct {
	argv     []string
	tty      bool
	stdin    bool                  // a pipe
	output   func(p *model) string // all that it may ever write
	code     int                   // when nobody interferes
	ends     bool                  // by itself
	stubborn bool                  // ignores SIGTERM, once it has said R
}

// kinds are the programs of the processes. They use the built-ins of the shell where they
// can, because there are many processes.
var kinds = []kind{
	{argv: sh("exec cat"), stdin: true, output: (*model).echo},
	{argv: sh("trap '' TERM; echo R; exec cat"), stdin: true, output: (*model).readyEcho, stubborn: true},
	{argv: sh("exec cat >&2"), stdin: true, output: (*model).echo},
	{argv: sh("exec sleep 1000"), output: func(*model) string { return "" }},
	{argv: sh("echo some text; exit 7"), output: func(*model) string { return "some text\n" }, code: 7, ends: true},
	{argv: sh("exec seq 1 20000"), output: func(*model) string { return numbers }, ends: true},
	// The size that a terminal has when the first byte arrives.
	{argv: sh("stty raw -echo; echo R; head -c1 >/dev/null; stty size"), tty: true, output: (*model).sizes},
}

func sh(command string) []string { return []string{"/bin/sh", "-c", command} }

var numbers = func() string {
	var b strings.Builder
	for i := range 20000 {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}()

// model is the expected state of one process.
type model struct {
	kind
	id, startID string

	written      strings.Builder         // accepted by the server
	size, sizeAt protocol.TerminalSize   // now, and when the first byte was written
	asked        map[syscall.Signal]bool // signals that were sent
	stdinClosed  bool                    // by closeStdin
	stopped      bool                    // by SIGSTOP

	// What the owner has seen.
	mu     sync.Mutex
	last   uint64
	out    strings.Builder
	exited bool
	code   int
	closed bool
}

func (m *model) echo() string { return m.written.String() }

func (m *model) readyEcho() string { return "R\n" + m.echo() }

func (m *model) sizes() string {
	if m.written.Len() == 0 {
		return "R\n"
	}
	return fmt.Sprintf("R\n%d %d\n", m.sizeAt.Rows, m.sizeAt.Cols)
}

// ask notes that a signal is sent, unless the process ignores it.
func (m *model) ask(sig syscall.Signal) {
	if m.stubborn && sig == syscall.SIGTERM && strings.HasPrefix(m.seen(), "R\n") {
		return
	}
	m.asked[sig] = true
}

// deadly reports whether a signal was sent that ends every program.
func (m *model) deadly() bool {
	for sig := range m.asked {
		if sig != syscall.SIGCONT && sig != syscall.SIGSTOP {
			return true
		}
	}
	return false
}

// mayEnd says that the process may have ended, lives that it must be running.
func (m *model) mayEnd() bool {
	return m.ends || m.stdinClosed || m.deadly() || m.tty && m.written.Len() > 0
}

func (m *model) hasClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

func (m *model) seen() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.out.String()
}

// seq returns the number of the last event that the owner has received.
func (m *model) seq() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// take handles an event of the owner. It ignores repeated events.
func (m *model) take(method string, seq uint64, data []byte, code int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case seq <= m.last:
		return nil
	case seq != m.last+1:
		return fmt.Errorf("process %s: event %d follows event %d", m.id, seq, m.last)
	case m.closed:
		return fmt.Errorf("process %s: event %d after closed", m.id, seq)
	}
	m.last = seq
	switch method {
	case protocol.NotificationOutput:
		m.out.Write(data)
	case protocol.NotificationExited:
		m.exited, m.code = true, code
	case protocol.NotificationClosed:
		m.closed = true
	}
	return nil
}

// check compares the events so far with the model. At the end the process must have closed.
func (m *model) check(end bool) error {
	got, want := m.seen(), m.output(m)
	if !strings.HasPrefix(want, got) {
		return fmt.Errorf("process %s (%q): %d bytes of output, which are not the first of %d: %.100q", m.id, m.argv, len(got), len(want), got)
	}
	if !end {
		return nil
	}
	allowed := []int{}
	if m.mayEnd() {
		allowed = append(allowed, m.kind.code)
	}
	for sig := range m.asked {
		allowed = append(allowed, 128+int(sig))
	}
	code := m.code
	if !slices.Contains(allowed, code) {
		return fmt.Errorf("process %s (%q) ended with code %d, it may have been %v", m.id, m.argv, code, allowed)
	}
	if code == m.kind.code && !m.deadly() && got != want {
		return fmt.Errorf("process %s (%q) has written %d bytes of %d", m.id, m.argv, len(got), len(want))
	}
	return nil
}
