package process

import (
	"slices"
	"sync"

	"execserver/protocol"
)

// maxSizes bounds how many sizes of a terminal are remembered.
const maxSizes = 32

// SizedAt is a size of a terminal, and how many bytes of output were numbered before it had
// the size.
type SizedAt struct {
	Offset uint64
	Size   protocol.TerminalSize
}

// sizes are those that the terminal of a process has had, the oldest first. Whoever draws
// the output later needs them.
type sizes struct {
	mu  sync.Mutex
	all []SizedAt
}

// add adds the latest size.
func (s *sizes) add(offset uint64, size protocol.TerminalSize) {
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

func (s *sizes) list() []SizedAt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// Sizes returns the sizes that the terminal has had, the oldest first; the last is the present
// one, which the program may have set itself. Of many sizes the oldest are forgotten. It
// returns ErrNoTerminal for a process without a terminal.
func (p *Process) Sizes() ([]SizedAt, error) {
	if !p.about.TTY {
		return nil, ErrNoTerminal
	}
	if size, err := sizeOf(p.master); err == nil && size.Rows > 0 && size.Cols > 0 {
		p.sized(size)
	} // else it is gone, and keeps its last size
	return p.sizes.list(), nil
}

// sized records a size that the terminal has from now on.
func (p *Process) sized(size protocol.TerminalSize) { p.sizes.add(p.Log.Tail().Offset, size) }
