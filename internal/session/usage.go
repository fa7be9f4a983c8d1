package session

import (
	"execserver/internal/ownership"
	"execserver/protocol"
)

// usedBytes is about how much a used process takes in an answer, without a long id.
const usedBytes = 192

// Usage serves process/usage for the session. reserve is as in Session.Read.
func (s *Session) Usage(reserve func(bytes int) error) (protocol.UsageResult, error) {
	return usageOf([]*Session{s}, s.opts.Ownership, reserve, false)
}

// Usage serves process/usage for all sessions that the viewer may observe.
func (s *Sessions) Usage(v Viewer, reserve func(bytes int) error) (protocol.UsageResult, error) {
	return usageOf(s.visible(v), s.opts.Ownership, reserve, true)
}

// usageOf returns what the processes of sessions use: of whole sessions, as many as a
// client accepts. named adds the ids of the sessions.
func usageOf(sessions []*Session, by *ownership.Ownership, reserve func(bytes int) error, named bool) (protocol.UsageResult, error) {
	owners := make([]*ownership.Owner, len(sessions))
	size := usedBytes
	for i, session := range sessions {
		owners[i] = session.owner
		size += usedBytes * len(session.started())
	}
	if err := reserve(size); err != nil {
		return protocol.UsageResult{}, err
	}
	result := protocol.UsageResult{Processes: []protocol.UsedProcess{}}
	used := by.UsageOf(owners)
	for _, session := range sessions {
		list := used[session.owner]
		if len(result.Processes)+len(list) > maxListedValues/protocol.UsedProcessValues {
			result.Truncated = true
			break
		}
		for _, u := range list {
			one := protocol.UsedProcess{
				ProcessID: u.Name, Processes: u.Processes, CPUMs: u.CPU.Milliseconds(), MemoryBytes: u.MemoryBytes,
			}
			if named {
				one.SessionID = session.ID
			}
			result.Processes = append(result.Processes, one)
		}
	}
	return result, nil
}
