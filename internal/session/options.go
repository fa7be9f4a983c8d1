package session

import (
	"log/slog"
	"time"

	"execserver/internal/output"
	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/protocol"
)

// Defaults of Options.
const (
	DefaultDetachedTTL        = 90 * time.Second
	DefaultSilentTTL          = 30 * time.Minute
	DefaultMaxKeep            = 24 * time.Hour
	DefaultMaxSessions        = 1024
	DefaultMaxProcesses       = 4096
	DefaultMaxClosed          = 4096
	DefaultMaxObservers       = 16
	DefaultRetainedTotalBytes = 512 << 20
)

// Options of Sessions. The zero value means the defaults.
type Options struct {
	Log            *slog.Logger   // nil: discard
	DetachedTTL    time.Duration  // how long a session lives without a connection
	SilentTTL      time.Duration  // the same if its peer only fell silent; at least DetachedTTL
	MaxKeep        time.Duration  // the longest lease; a negative value refuses leases
	ClosedTTL      time.Duration  // how long a closed process is remembered; default DetachedTTL, at least 80 s
	MaxSessions    int            // attached or detached
	MaxProcesses   int            // of one session, not closed
	MaxClosed      int            // of one session; the record of a process is small, but clients can start hundreds a second
	RetainedBytes  int64          // of output, per process
	Budget         *output.Budget // for the output of all processes
	EvictDetached  bool           // while detached, evict output instead of blocking the child
	MaxObservers   int            // of one session
	MaxQueuedInput int            // bytes that wait for all processes to read them from their stdin; default 256 MiB

	// Bounds for all principals that have quotas together (see package quota): of live
	// processes, and of watches. 0 means 1 << 20.
	AllProcesses, AllWatches int

	// Exited, if not nil, is called when a process of a session has ended. It must not
	// block.
	Exited func(session *Session, processID string, exit protocol.ExitRecord)
	// Recorder records the processes; nil records nothing.
	Recorder Recorder

	// Ownership tracks descendants of processes; nil uses process groups.
	Ownership *ownership.Ownership
	// DrainTimeout is as in process.Options: 0 means the default, a negative value the
	// end of the streams.
	DrainTimeout time.Duration
}

// minClosedTTL is how long clients expect the server to remember a closed process.
const minClosedTTL = 80 * time.Second

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.DetachedTTL <= 0 {
		o.DetachedTTL = DefaultDetachedTTL
	}
	if o.SilentTTL <= 0 {
		o.SilentTTL = DefaultSilentTTL
	}
	o.SilentTTL = max(o.SilentTTL, o.DetachedTTL)
	switch {
	case o.MaxKeep == 0:
		o.MaxKeep = DefaultMaxKeep
	case o.MaxKeep < 0:
		o.MaxKeep = 0
	}
	if o.ClosedTTL <= 0 {
		o.ClosedTTL = max(o.DetachedTTL, minClosedTTL)
	}
	if o.MaxSessions <= 0 {
		o.MaxSessions = DefaultMaxSessions
	}
	if o.MaxQueuedInput <= 0 {
		o.MaxQueuedInput = 256 << 20
	}
	if o.MaxProcesses <= 0 {
		o.MaxProcesses = DefaultMaxProcesses
	}
	if o.MaxClosed <= 0 {
		o.MaxClosed = DefaultMaxClosed
	}
	if o.MaxObservers <= 0 {
		o.MaxObservers = DefaultMaxObservers
	}
	if o.AllProcesses <= 0 {
		o.AllProcesses = 1 << 20
	}
	if o.AllWatches <= 0 {
		o.AllWatches = 1 << 20
	}
	if o.RetainedBytes <= 0 {
		o.RetainedBytes = process.DefaultRetainedBytes
	}
	if o.Budget == nil {
		o.Budget = output.NewBudget(DefaultRetainedTotalBytes)
	}
	if o.Ownership == nil {
		o.Ownership = ownership.Default()
	}
	return o
}

// maxKept is how many of the sessions may have a lease. The others remain for clients that
// know no leases.
func (o *Options) maxKept() int { return max(1, o.MaxSessions/2) }
