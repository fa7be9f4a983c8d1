package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"

	"execserver/protocol"
)

// maxSizes bounds the sizes of a terminal that are remembered.
const maxSizes = 32

// SizedAt is a terminal size and the offset in the output at which it was set.
type SizedAt struct {
	Offset uint64
	Size   protocol.TerminalSize
}

// sizeHistory holds the sizes of a terminal, oldest first, for rendering its output later.
type sizeHistory struct {
	mu  sync.Mutex
	all []SizedAt
}

// add adds the latest size.
func (s *sizeHistory) add(offset uint64, size protocol.TerminalSize) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := len(s.all); {
	case n > 0 && s.all[n-1].Size == size:
		return
	case n > 0 && s.all[n-1].Offset == offset:
		s.all = s.all[:n-1]
	case n == maxSizes:
		s.all = slices.Delete(s.all, 0, 1)
	}
	s.all = append(s.all, SizedAt{offset, size})
}

func (s *sizeHistory) list() []SizedAt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// Sizes returns the sizes of the terminal, oldest first, without the oldest of many. The
// last one is the present size, which the program may have set itself. Sizes returns
// ErrNoTerminal for a process without a terminal.
func (p *Process) Sizes() ([]SizedAt, error) {
	if !p.description.TTY {
		return nil, ErrNoTerminal
	}
	if size, err := sizeOf(p.master); err == nil && size.Rows > 0 && size.Cols > 0 {
		p.recordSize(size)
	} // otherwise the terminal is gone and keeps its last size
	return p.sizes.list(), nil
}

// recordSize records a new size of the terminal.
func (p *Process) recordSize(size protocol.TerminalSize) { p.sizes.add(p.Log.Tail().Offset, size) }

// ErrNoTerminal reports that a process has no terminal.
var ErrNoTerminal = errors.New("the process is not on a terminal; start it with tty true")

// Resize sets the terminal size after all earlier writes. It returns ErrNoTerminal for a
// process without a terminal.
func (p *Process) Resize(size protocol.TerminalSize) error {
	if !p.description.TTY {
		return ErrNoTerminal
	}
	if err := p.stdin.resize(size); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("resize the terminal of process %d: %w", p.pid, err)
	}
	return nil
}

// SignalForeground sends a signal to the foreground process group of the process's
// terminal, if there is one. Only descendants of the program in its session get it, because
// a terminal remembers the number of a group that is gone. SignalForeground returns
// ErrNoTerminal for a process without a terminal, and ErrFinished as Signal does.
func (p *Process) SignalForeground(sig syscall.Signal) error {
	if !p.description.TTY {
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
