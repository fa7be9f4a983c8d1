package session

import (
	"execserver/internal/quota"
	"execserver/protocol"
)

// quotas count what the sessions of the principals that have quotas have together.
type quotas struct {
	processes, watches *quota.Quota
	input              *quota.Quota     // bytes that wait for processes to read them
	screens            *quota.Quota     // units of memory for screens
	drawing            *quota.Semaphore // who interprets output for a screen
}

// Screens that are kept count in units of screenUnit bytes.
const (
	screenUnit     = 256 << 10
	maxScreenUnits = 256
)

// takeProcessLocked counts one more live process of the session.
func (s *Session) takeProcessLocked(e *entry) error {
	if s.quotaKey == quota.Everybody {
		return nil
	}
	if refusal := s.quotas.processes.Take(s.quotaKey); refusal != nil {
		return protocol.Errorf(protocol.CodeInvalidRequest, "process %s refused: %s", e.id, refusal.Of("has", "live processes"))
	}
	e.counted = true
	return nil
}

// giveProcessLocked counts a process less that is not live any more.
func (s *Session) giveProcessLocked(e *entry) {
	if e.counted {
		e.counted = false
		s.quotas.processes.Release(s.quotaKey)
	}
}

// takeWatch counts one more watch of the session.
func (s *Session) takeWatch(id string) error {
	if s.quotaKey == quota.Everybody {
		return nil
	}
	if refusal := s.quotas.watches.Take(s.quotaKey); refusal != nil {
		return protocol.Errorf(protocol.CodeInvalidRequest, "watch `%s` refused: %s", id, refusal.Of("has", "watches"))
	}
	return nil
}

func (s *Session) giveWatch() {
	if s.quotaKey != quota.Everybody {
		s.quotas.watches.Release(s.quotaKey)
	}
}
