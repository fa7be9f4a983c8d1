package session

// Count returns the number of sessions, attached or detached.
func (s *Sessions) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}

// ListSome is List with another limit.
var ListSome = (*Sessions).listSome
