package process

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"execserver/protocol"
)

// ErrTerminal says that the input of a terminal cannot be closed.
var ErrTerminal = errors.New("the input of a terminal does not close; " +
	"write the byte 4 (control-D) at the start of a line instead")

// ErrNoTerminal says that a process has no terminal.
var ErrNoTerminal = errors.New("the process is not on a terminal; start it with tty true")

// Tap learns what passes to a process: the input that is accepted, and the sizes that its
// terminal gets. Its methods must not block, and may not keep data.
type Tap interface {
	Wrote(data []byte)
	Resized(size protocol.TerminalSize)
}

// SetTap makes tap listen to a process to which nobody has written yet.
func (p *Process) SetTap(tap Tap) {
	if p.stdin != nil {
		p.stdin.mu.Lock()
		defer p.stdin.mu.Unlock()
		p.stdin.tap = tap
	}
}

// CloseStdin closes the child's stdin after everything that was written before.
// It does nothing when stdin is closed already or never was open. It returns
// ErrTerminal for a process on a terminal.
func (p *Process) CloseStdin() error {
	if p.about.TTY {
		return ErrTerminal
	}
	if p.stdin != nil {
		p.stdin.end()
	}
	return nil
}

// StdinClosed reports whether writes are refused.
func (p *Process) StdinClosed() bool { return p.stdin == nil || p.stdin.ended() }

// Resize gives the terminal a size after everything that was written before. It
// returns ErrNoTerminal for a process without one.
func (p *Process) Resize(size protocol.TerminalSize) error {
	if !p.about.TTY {
		return ErrNoTerminal
	}
	if err := p.stdin.resize(size); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("resize the terminal of process %d: %w", p.pid, err)
	}
	return nil
}

// SignalForeground sends a signal to the foreground process group of the process's
// terminal, if there is one: to its members that are descendants of the program and in its
// session, for a terminal remembers the number of a group that is gone. It returns
// ErrNoTerminal for a process without a terminal, and ErrFinished as Signal does.
func (p *Process) SignalForeground(sig syscall.Signal) error {
	if !p.about.TTY {
		return ErrNoTerminal
	}
	select {
	case <-p.closedCh:
		return ErrFinished
	default:
	}
	group, err := foreground(p.master)
	held := false
	if group == p.group {
		held, err = p.signalGroup(sig)
	}
	if err == nil && group > 0 && !held {
		err = p.tree.Signal(sig, func(of, session int) bool { return of == group && session == p.group })
	}
	if err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("signal the foreground process group %d of process %d: %w", group, p.pid, err)
	}
	return nil
}
