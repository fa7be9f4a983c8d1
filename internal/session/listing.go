package session

import (
	"cmp"
	"slices"

	"execserver/internal/ownership"
	"execserver/protocol"
)

// Viewer is a client that may observe sessions, and so list them.
type Viewer struct {
	Principal string // of the client, which may observe its own sessions
	Others    bool   // the client may also observe those of other principals
}

func (v Viewer) sees(s *Session) bool { return v.Others || s.Principal == v.Principal }

// maxListedValues bounds the JSON values of a list, so that its reader accepts it.
const maxListedValues = protocol.MaxValues - 16

// List serves session/list: the sessions that the viewer may observe. reserve is as in
// Session.Read.
func (s *Sessions) List(v Viewer, reserve func(bytes int) error) (protocol.SessionsResult, error) {
	return s.listSome(v, maxListedValues/protocol.ListedSessionValues, reserve)
}

func (s *Sessions) listSome(v Viewer, most int, reserve func(bytes int) error) (protocol.SessionsResult, error) {
	// Many requests may wait for a reservation, so collect nothing before it is granted.
	if err := reserve(listedBytes * (min(s.countVisible(v), most) + 1)); err != nil {
		return protocol.SessionsResult{}, err
	}
	sessions := s.visible(v)
	truncated := len(sessions) > most
	sessions = sessions[:min(len(sessions), most)]
	list := make([]protocol.ListedSession, 0, len(sessions))
	for _, session := range sessions {
		if listed, ok := s.listed(session, v); ok {
			list = append(list, listed)
		}
	}
	return protocol.SessionsResult{Sessions: list, Truncated: truncated}, nil
}

// countVisible returns how many sessions visible would return.
func (s *Sessions) countVisible(v Viewer) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, session := range s.byID {
		if v.sees(session) {
			n++
		}
	}
	return n
}

// visible returns the sessions that a viewer may observe, in the order in which they were
// created.
func (s *Sessions) visible(v Viewer) []*Session {
	s.mu.Lock()
	var list []*Session
	for _, session := range s.byID {
		if v.sees(session) {
			list = append(list, session)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b *Session) int { return cmp.Compare(a.order, b.order) })
	return list
}

// listed describes a session. It reports false if the session has ended.
func (s *Sessions) listed(session *Session, v Viewer) (protocol.ListedSession, bool) {
	listed := protocol.ListedSession{
		SessionID: session.ID, CreatedAtMs: session.created.UnixMilli(),
		Own: session.Principal == v.Principal, State: protocol.SessionAttached,
	}
	if !listed.Own {
		listed.Principal = session.Principal
	}
	for _, sp := range session.started() {
		listed.Processes++
		if sp.proc.Log.Status().Exit == nil {
			listed.Running++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	session.mu.Lock()
	defer session.mu.Unlock()
	listed.Name, listed.KeepMs, listed.DetachedOutput = session.name, uint64(session.keep.Milliseconds()), session.detachedOutput
	listed.ClientName, listed.Observers = session.client, len(session.observers)
	if d := s.detached[session]; d != nil {
		ends := d.ends
		if !session.lifeEnds.IsZero() && session.lifeEnds.Before(ends) {
			ends = session.lifeEnds
		}
		listed.State, listed.EndsAtMs = protocol.SessionDetached, ends.UnixMilli()
	}
	return listed, !session.ended
}

// ListProcesses serves process/list for all sessions that the viewer may observe. It lists
// whole sessions, as many as a client accepts. reserve is as in Session.Read.
func (s *Sessions) ListProcesses(v Viewer, reserve func(bytes int) error) (protocol.ListResult, error) {
	// As in listSome, collect nothing before the reservation is granted.
	if err := reserve(s.processesSize(v)); err != nil {
		return protocol.ListResult{}, err
	}
	var result protocol.ListResult
	list, truncated := s.processesOf(v)
	result.Truncated = truncated
	for _, of := range list {
		for _, sp := range of.started {
			listed := sp.listed()
			listed.SessionID = of.id
			result.Processes = append(result.Processes, listed)
		}
		for _, b := range of.background {
			listed := listedBackground(b)
			listed.SessionID = of.id
			result.Background = append(result.Background, listed)
		}
	}
	return result, nil
}

// processesSize returns the approximate size of the result of ListProcesses on the wire.
func (s *Sessions) processesSize(v Viewer) int {
	list, _ := s.processesOf(v)
	n := 1
	for _, of := range list {
		n += len(of.started) + len(of.background)
	}
	return listedBytes * n
}

// listedProcesses are the processes of one session.
type listedProcesses struct {
	id         string // of the session
	started    []*sessionProcess
	background []ownership.Background
}

// processesOf returns the processes of the sessions that the viewer may observe, and
// whether sessions are left out.
func (s *Sessions) processesOf(v Viewer) (list []listedProcesses, truncated bool) {
	sessions := s.visible(v)
	owners := make([]*ownership.Owner, len(sessions))
	for i, session := range sessions {
		owners[i] = session.trees
	}
	background := s.opts.Ownership.BackgroundOf(owners)
	values := 0
	for _, session := range sessions {
		of := listedProcesses{session.ID, session.started(), background[session.trees]}
		for _, sp := range of.started {
			values += listedValues + len(sp.proc.Describe().Argv)
		}
		for _, b := range of.background {
			values += listedValues + len(b.Argv)
		}
		if values > maxListedValues {
			return list, true
		}
		list = append(list, of)
	}
	return list, false
}

// listedValues is the largest number of JSON values of a listed process, without its
// arguments.
const listedValues = 32

// Usage serves process/usage for all sessions that the viewer may observe.
func (s *Sessions) Usage(v Viewer, reserve func(bytes int) error) (protocol.UsageResult, error) {
	return usageOf(s.visible(v), s.opts.Ownership, reserve, true)
}

// usedBytes is about how much a used process takes in an answer, without a long id.
const usedBytes = 192

// usageOf returns the resource usage of the processes of sessions. It includes as many whole
// sessions as a client accepts. named adds the ids of the sessions.
func usageOf(sessions []*Session, by *ownership.Ownership, reserve func(bytes int) error, named bool) (protocol.UsageResult, error) {
	owners := make([]*ownership.Owner, len(sessions))
	size := usedBytes
	for i, session := range sessions {
		owners[i] = session.trees
		size += usedBytes * len(session.started())
	}
	if err := reserve(size); err != nil {
		return protocol.UsageResult{}, err
	}
	result := protocol.UsageResult{Processes: []protocol.ProcessUsage{}}
	used := by.UsageOf(owners)
	for _, session := range sessions {
		list := used[session.trees]
		if len(result.Processes)+len(list) > maxListedValues/protocol.ProcessUsageValues {
			result.Truncated = true
			break
		}
		for _, u := range list {
			one := protocol.ProcessUsage{
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
