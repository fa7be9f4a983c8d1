// Package session holds what outlives a connection: a session owns processes,
// passes their events on to the connection that is attached to it, keeps them
// while none is, and ends when it has been detached too long.
//
// Start at [Sessions], the sessions of a server, and [Session.Start]. The way
// of an event is [Outbox.AppendEvent].
package session

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"execserver/process"
	"execserver/protocol"
)

// maxClosed is how many closed processes a session keeps at most, whatever
// their age: the record of a process is small, but clients can start hundreds a
// second.
const maxClosed = 4096

// Session is one session. All methods may be called concurrently.
//
// Lock order: Sessions.mu, Session.mu, the lock of a process's log.
type Session struct {
	ID string

	opts Options
	log  *slog.Logger

	mu        sync.Mutex
	entries   map[string]*entry
	closed    []*entry        // of entries, in the order in which they closed
	sweep     *time.Timer     // expires the first of closed
	leftovers []process.Group // of processes whose entries have expired
	out       *Outbox         // nil while detached
	ended     bool
}

// entry is one process of a session.
type entry struct {
	id        string
	proc      *process.Process // nil while it is being spawned
	cancelled bool             // terminated while it was being spawned
	announced bool             // its start has been answered
	ready     bool             // it is in the outbox's queue
	cursor    uint64           // number of the last event passed to the outbox
	reads     int              // process/read calls of the attached connection
	closedAt  time.Time        // zero: not closed
}

func newSession(id string, opts Options) *Session {
	return &Session{ID: id, opts: opts, log: opts.Log.With("session", id), entries: make(map[string]*entry)}
}

// Start starts a process under a client's id. After the caller has passed the
// success on, it calls Announce; no event of the process goes out before.
func (s *Session) Start(id string, spec process.Spec) error {
	e, err := s.reserve(id)
	if err != nil {
		return err
	}
	proc, err := process.Start(spec, &process.Options{
		RetainedBytes: s.opts.RetainedBytes,
		Budget:        s.opts.Budget,
		Notify:        func() { s.notify(e) },
		Blocked:       s.wantAck,
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.entries, id)
		return protocol.Errorf(protocol.CodeInternal, "%s", err)
	}
	e.proc = proc
	proc.Log.SetEvict(s.out == nil && s.opts.EvictDetached)
	s.log.Info("process started", "process", id, "pid", proc.Pid(), "tty", spec.TTY)
	if s.ended || e.cancelled {
		delete(s.entries, id)
		proc.Kill()
		proc.Abandon()
		go release(proc)
		return protocol.Errorf(protocol.CodeInvalidRequest, "process %s start was cancelled", id)
	}
	return nil
}

// reserve makes the entry of a process that is to be spawned.
func (s *Session) reserve(id string) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch live := len(s.entries) - len(s.closed); {
	case s.ended:
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "session %s has ended", s.ID)
	case s.entries[id] != nil:
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "process %s already exists", id)
	case live >= s.opts.MaxProcesses:
		return nil, protocol.Errorf(protocol.CodeInvalidRequest,
			"process %s refused: the session has %d live processes, the limit is %d", id, live, s.opts.MaxProcesses)
	}
	e := &entry{id: id}
	s.entries[id] = e
	return e, nil
}

// Announce lets the events of a started process go out.
func (s *Session) Announce(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[id]; e != nil {
		e.announced = true
		s.readyLocked(e)
		s.noteClosedLocked(e)
	}
}

// notify is called by a process after every new event.
func (s *Session) notify(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.announced {
		s.readyLocked(e)
		s.noteClosedLocked(e)
	}
}

// wantAck is called by a process that waits for room.
func (s *Session) wantAck() {
	s.mu.Lock()
	out := s.out
	s.mu.Unlock()
	if out != nil {
		out.peer.WantAck()
	}
}

// readyLocked queues a process that has something to send.
func (s *Session) readyLocked(e *entry) {
	if s.out == nil || e.ready || e.proc == nil || !e.announced {
		return
	}
	e.ready = true
	s.out.queue = append(s.out.queue, e)
	s.out.peer.Wake()
}

// noteClosedLocked starts the clock of a process that has closed.
func (s *Session) noteClosedLocked(e *entry) {
	if e.proc == nil || !e.closedAt.IsZero() || !e.proc.Log.IsClosed() {
		return
	}
	e.closedAt = time.Now()
	s.closed = append(s.closed, e)
	if len(s.closed) > maxClosed {
		s.expireLocked()
	}
	if s.sweep == nil {
		s.sweep = time.AfterFunc(s.opts.ClosedTTL, s.expireClosed)
	}
}

// expireClosed forgets the processes that closed long enough ago.
func (s *Session) expireClosed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep = nil
	if s.ended {
		return
	}
	for len(s.closed) > 0 {
		wait := time.Until(s.closed[0].closedAt.Add(s.opts.ClosedTTL))
		if wait > 0 {
			s.sweep = time.AfterFunc(wait, s.expireClosed)
			return
		}
		s.expireLocked()
	}
}

// expireLocked forgets the process that closed first. What it left running in
// its group still belongs to the session.
func (s *Session) expireLocked() {
	e := s.closed[0]
	s.closed[0] = nil
	s.closed = s.closed[1:]
	delete(s.entries, e.id)
	s.leftovers = aliveGroups(s.leftovers)
	if group := e.proc.Leftover(); group != 0 {
		s.leftovers = append(s.leftovers, group)
	}
	e.proc.Release()
}

// aliveGroups drops the groups that are gone, whose numbers may be given to
// others.
func aliveGroups(groups []process.Group) []process.Group {
	alive := groups[:0]
	for _, g := range groups {
		if g.Alive() {
			alive = append(alive, g)
		}
	}
	return alive
}

// find returns a process that has been spawned.
func (s *Session) find(id string) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[id]
	switch {
	case e == nil:
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "unknown process id %s", id)
	case e.proc == nil:
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "process id %s is starting", id)
	}
	return e, nil
}

// Read serves process/read: it waits until there is something to tell after
// the number, at most until ctx ends, and then calls size with about how many
// bytes the answer will have before it collects it.
func (s *Session) Read(ctx context.Context, p protocol.Read, wait time.Duration, reserve func(bytes int) error) (*protocol.ReadResult, error) {
	e, err := s.find(p.ProcessID)
	if err != nil {
		return nil, err
	}
	log := e.proc.Log
	after := value(p.AfterSeq)
	s.notePoll(e, after)
	if wait > 0 {
		waitCtx, cancel := context.WithTimeout(ctx, wait)
		log.Wait(waitCtx, after)
		cancel()
	}
	if err := reserve(log.SizeAfter(after)); err != nil {
		return nil, err
	}
	return log.Read(after, p.MaxBytes), nil
}

// notePoll tells a client that takes its output by polling from one that reads
// once after a resume to fill a gap: the former's unread output is protected.
func (s *Session) notePoll(e *entry, after uint64) {
	s.mu.Lock()
	e.reads++
	polls := s.out != nil && (!s.out.resumed || e.reads > 1)
	s.mu.Unlock()
	if polls {
		e.proc.Log.Poll(after)
	}
}

// CanWrite reports whether Write would return at once.
func (s *Session) CanWrite(id string, n int) bool {
	e, err := s.find(id)
	return err != nil || e.proc.CanWrite(n)
}

// Write serves process/write; see process.Process.Write.
func (s *Session) Write(p protocol.Write, cancel <-chan struct{}, wait func(func())) (status protocol.WriteStatus, cancelled bool) {
	s.mu.Lock()
	e := s.entries[p.ProcessID]
	var proc *process.Process
	if e != nil {
		proc = e.proc
	}
	s.mu.Unlock()
	switch {
	case e == nil:
		return protocol.WriteUnknownProcess, false
	case proc == nil:
		return protocol.WriteStarting, false
	}
	return proc.Write(p.Chunk, p.WriteID, cancel, wait)
}

// Interrupt sends SIGINT to a process's group; unknown, starting and ended
// processes are no error.
func (s *Session) Interrupt(id string) error {
	e, err := s.find(id)
	if err != nil {
		return nil
	}
	if err := e.proc.Interrupt(); err != nil {
		return protocol.Errorf(protocol.CodeInternal, "failed to signal process: %s", err)
	}
	return nil
}

// Terminate ends a process and reports whether it was running.
func (s *Session) Terminate(id string) (running bool) {
	s.mu.Lock()
	e := s.entries[id]
	if e != nil && e.proc == nil {
		e.cancelled = true
		s.mu.Unlock()
		return true
	}
	s.mu.Unlock()
	return e != nil && e.proc.Terminate()
}

// end kills everything that the session owns; its events go nowhere any more.
func (s *Session) end(reason string) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended = true
	if s.sweep != nil {
		s.sweep.Stop()
	}
	var procs []*process.Process
	for _, e := range s.entries {
		if e.proc != nil {
			procs = append(procs, e.proc)
		}
	}
	leftovers := s.leftovers
	s.leftovers = nil
	s.mu.Unlock()

	for _, p := range procs {
		p.Kill()
		p.Abandon()
	}
	for _, g := range leftovers {
		g.Kill()
	}
	s.log.Info("session ended", "reason", reason, "processes", len(procs))
}

// wait waits until the processes of an ended session are closed, and gives
// their memory back.
func (s *Session) wait() {
	s.mu.Lock()
	var procs []*process.Process
	for _, e := range s.entries {
		if e.proc != nil {
			procs = append(procs, e.proc)
		}
	}
	s.mu.Unlock()
	for _, p := range procs {
		release(p)
	}
}

// release gives the memory of a killed process back once it is closed.
func release(p *process.Process) {
	<-p.Closed()
	p.Release()
}

func value(p *uint64) uint64 {
	if p == nil {
		return 0
	}
	return *p
}
