package client

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// RecoverWhileKept, as Options.RecoveryTimeout, makes an Environment try to replace a broken
// connection for as long as the server may keep the session: until the time is over that
// Info.SessionLifetime and the lease of Keep say, and one minute more, in which the server
// may have noticed the break later. It gives up at once when the server answers that it has
// no such session. With a server that does not say how long it keeps sessions it means
// DefaultRecoveryTimeout.
const RecoverWhileKept time.Duration = math.MaxInt64

// noticeTime is how much later than the client the server may notice a broken connection.
const noticeTime = time.Minute

// State is the state of an Environment's connection, for Options.OnState.
type State struct {
	Kind  StateKind
	Since time.Time
	// Until is when Recovering ends at the latest.
	Until time.Time
	// Err is why the connection broke, for Recovering, or why the Environment failed.
	Err error
}

// StateKind is the kind of a State.
type StateKind byte

// The kinds of State. An Environment begins with Connected, of which it tells nobody.
const (
	Connected  StateKind = iota + 1 // calls reach the server
	Recovering                      // the connection is broken, and the client tries to replace it
	Failed                          // the connection is lost for good
)

// String returns "connected", "recovering" or "failed".
func (k StateKind) String() string {
	switch k {
	case Connected:
		return "connected"
	case Recovering:
		return "recovering"
	case Failed:
		return "failed"
	}
	return fmt.Sprintf("StateKind(%d)", byte(k))
}

// maxStates bounds the states that wait for a callback that blocks.
const maxStates = 64

// states passes the states of an Environment to a callback, in order, and holds up nobody
// else.
type states struct {
	tell func(State) // nil: nobody wants to know

	mu      sync.Mutex
	waiting []State
	telling bool
	over    bool // the program has closed the Environment
}

// put tells a state soon.
func (s *states) put(state State) {
	if s.tell == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	if s.waiting = append(s.waiting, state); len(s.waiting) > maxStates {
		s.waiting = s.waiting[2:] // a break, and its end
	}
	if !s.telling {
		s.telling = true
		go s.run() // ends when it has told everything, and the callback has returned
	}
}

func (s *states) run() {
	for {
		s.mu.Lock()
		if len(s.waiting) == 0 {
			s.telling = false
			s.mu.Unlock()
			return
		}
		next := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.mu.Unlock()
		s.tell(next)
	}
}

// end drops what has not been told.
func (s *states) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting, s.over = nil, true
}

// recoveryTime returns how long the client tries to replace a connection that breaks now.
func (l *link) recoveryTime() time.Duration {
	timeout := l.env.opts.RecoveryTimeout
	if timeout != RecoverWhileKept {
		return timeout
	}
	kept := l.machine.SessionLifetime
	if kept == nil {
		return DefaultRecoveryTimeout
	}
	return max(kept.Detached, kept.Silent, l.lease()) + noticeTime
}
