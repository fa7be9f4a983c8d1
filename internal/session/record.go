package session

import (
	"context"
	"time"

	"execserver/internal/output"
	"execserver/internal/process"
	"execserver/internal/quota"
	"execserver/protocol"
)

// Recorder records processes. Package recording has one.
type Recorder interface {
	// Record begins to record a process that has just started, from its first event on.
	// It must not wait, and returns nil if it does not record the process.
	Record(about Recorded, log *output.Log) Recording
}

// Recorded describes a process to be recorded.
type Recorded struct {
	Principal, Session, Process string
	SessionName                 string                // "" if it has none
	Limited                     bool                  // the principal has a quota
	Size                        protocol.TerminalSize // of its terminal; zero if it has none
	Term                        string                // the kind of its terminal
	process.Description
}

// Recording is the recording of one process. It reads the output from the process's log,
// and ends after the closed event.
type Recording interface {
	process.Tap
	// Done is closed when nothing more will be read from the log.
	Done() <-chan struct{}
}

// record begins to record a process, before anybody can write to it.
func (s *Session) record(e *entry, proc *process.Process, spec process.Spec) {
	if s.opts.Recorder == nil {
		return
	}
	about := Recorded{
		Principal: s.Principal, Session: s.ID, Process: e.id, Limited: s.quotaKey != quota.Everybody,
		Description: proc.Describe(),
	}
	s.mu.Lock()
	about.SessionName = s.name
	s.mu.Unlock()
	if spec.TTY {
		about.Term = spec.Env["TERM"]
		if about.Size = spec.Size; about.Size == (protocol.TerminalSize{}) {
			about.Size = process.DefaultSize
		}
	}
	if e.recording = s.opts.Recorder.Record(about, proc.Log); e.recording != nil {
		proc.SetTap(e.recording)
	}
}

// recordTimeout bounds how long an ended session waits until the rest of its output is
// recorded. A disk that is too slow loses that.
const recordTimeout = time.Second

// awaitRecordings waits until the output of closed processes is recorded.
func awaitRecordings(entries []*entry) {
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	for _, e := range entries {
		if e.recording == nil {
			continue
		}
		<-e.proc.Closed()
		select {
		case <-e.recording.Done():
		case <-ctx.Done():
			return
		}
	}
}
