package session

import (
	"execserver/internal/share"
	"execserver/protocol"
)

// pools count what the sessions of the principals that have shares have together.
type pools struct {
	processes, watches *share.Pool
	screens            *share.Pool   // units of memory for screens
	drawing            *share.Places // who interprets output for a screen
}

// Screens that are kept count in units of screenUnit bytes.
const (
	screenUnit     = 256 << 10
	maxScreenUnits = 256
)

// takeProcessLocked counts one more live process of the session.
func (s *Session) takeProcessLocked(e *entry) error {
	if s.share == share.Everybody {
		return nil
	}
	if refusal := s.pools.processes.Take(s.share); refusal != nil {
		return protocol.Errorf(protocol.CodeInvalidRequest, "process %s refused: %s", e.id, refusal.Of("has", "live processes"))
	}
	e.counted = true
	return nil
}

// giveProcessLocked counts a process less that is not live any more.
func (s *Session) giveProcessLocked(e *entry) {
	if e.counted {
		e.counted = false
		s.pools.processes.Give(s.share)
	}
}

// takeWatch counts one more watch of the session.
func (s *Session) takeWatch(id string) error {
	if s.share == share.Everybody {
		return nil
	}
	if refusal := s.pools.watches.Take(s.share); refusal != nil {
		return protocol.Errorf(protocol.CodeInvalidRequest, "watch `%s` refused: %s", id, refusal.Of("has", "watches"))
	}
	return nil
}

func (s *Session) giveWatch() {
	if s.share != share.Everybody {
		s.pools.watches.Give(s.share)
	}
}
