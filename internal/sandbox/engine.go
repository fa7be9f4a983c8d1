package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"execserver/protocol"
)

// Mode is the operator's choice for sandboxes.
type Mode string

// The values of Mode.
const (
	ModeAuto     Mode = "auto"     // the server enforces what clients request, or refuses it
	ModeRequire  Mode = "require"  // and it starts nothing without a sandbox
	ModeOff      Mode = "off"      // the server refuses what clients request
	ModeLandlock Mode = "landlock" // the server uses only Landlock, for policies that need no more
)

// Means is the mechanism that confines files.
type Means string

// The values of Means.
const (
	MeansNone       Means = "none"
	MeansUser       Means = "userNamespace" // namespaces, created by any user
	MeansNamespaces Means = "namespaces"    // namespaces, created by a privileged program
	MeansBubblewrap Means = "bubblewrap"
	MeansLandlock   Means = "landlock"
)

// Options of an Engine. The zero value means the defaults.
type Options struct {
	Log  *slog.Logger // nil: discard
	Mode Mode         // default ModeAuto
	// Bubblewrap is the path of the program bwrap; "" searches the usual directories.
	Bubblewrap string
	// Means are the means to try, in order; nil means all.
	Means []Means
	// Hide are paths that no confined command reaches, even with a network.
	Hide []string
	// Sockets are sockets of other programs, or directories of such sockets, that a
	// confined command with a network may use.
	Sockets []string
	// Secrets returns the files that no confined command reads or writes, and Trusted the
	// files that none writes, whatever its policy says. nil means that there are none.
	// The results may change.
	Secrets, Trusted func() []string
	// StateDir is the directory in which the server records what it would leave behind if
	// it were killed; "" is the usual place.
	StateDir string
	// ProbeTimeout bounds the attempt of each of the means; default a minute. A busy machine
	// takes seconds; what takes longer hangs, and every client waits for it.
	ProbeTimeout time.Duration
}

// Engine confines programs. Its methods may be called concurrently.
type Engine struct {
	opts  Options
	log   *slog.Logger
	ctx   context.Context
	stop  context.CancelFunc
	state *engineState

	mu     sync.Mutex
	probe  chan struct{} // closed when the last probe has ended, whose result the following is
	means  Means
	reason string // why there are no means
	probed time.Time
}

// probePause is how long the result of a failed probe is valid.
const probePause = time.Minute

// New returns an engine. In the background the engine finds out what it can do on this
// machine.
func New(opts *Options) *Engine {
	e := &Engine{means: MeansNone}
	if opts != nil {
		e.opts = *opts
	}
	if e.log = e.opts.Log; e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.opts.Mode == "" {
		e.opts.Mode = ModeAuto
	}
	if e.opts.ProbeTimeout == 0 {
		e.opts.ProbeTimeout = time.Minute
	}
	e.state = newEngineState(&e.opts, e.log)
	e.ctx, e.stop = context.WithCancel(context.Background())
	e.probeLocked()
	return e
}

// Close ends a running probe and removes what the engine has recorded. No confined
// command may still run. Close may be called again.
func (e *Engine) Close() {
	e.mu.Lock()
	e.stop() // and no probe begins any more
	probe := e.probe
	e.mu.Unlock()
	<-probe
	e.state.close()
}

// Mode returns the operator's choice.
func (e *Engine) Mode() Mode { return e.opts.Mode }

// Means returns the means that confine files on this machine, and why there are none. It
// waits for a probe that is under way, because on a busy machine another answer would be
// wrong: for each means a minute at most.
func (e *Engine) Means() (Means, string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.awaitProbeLocked()
	if e.means == MeansNone && e.opts.Mode != ModeOff && e.ctx.Err() == nil && time.Since(e.probed) > probePause {
		e.probeLocked()
		e.awaitProbeLocked()
	}
	return e.means, e.reason
}

// awaitProbeLocked waits for the probe under way, if there is one.
func (e *Engine) awaitProbeLocked() {
	probe := e.probe
	e.mu.Unlock()
	<-probe
	e.mu.Lock()
}

// probeLocked begins a probe, which ends when every means has been tried, or with Close.
func (e *Engine) probeLocked() {
	ended := make(chan struct{})
	e.probe = ended
	go func() {
		defer close(ended)
		e.try()
	}()
}

// try finds out what the engine can do.
func (e *Engine) try() {
	means, reason := MeansNone, "sandboxes are switched off here; run the client without a sandbox "+
		"(danger-full-access) if this machine is one itself"
	if e.opts.Mode != ModeOff {
		means, reason = e.findMeans()
	}
	e.mu.Lock()
	e.means, e.reason, e.probed = means, reason, time.Now()
	e.mu.Unlock()
	switch {
	case e.opts.Mode == ModeOff, e.ctx.Err() != nil:
	case means == MeansNone:
		e.log.Warn("no means to enforce a sandbox; requests for one are refused", "reason", reason)
	default:
		log := e.log.With("means", means)
		if reason != "" {
			log = log.With("unusable", reason)
		}
		log.Info("sandboxes are enforced")
	}
}

// UnavailableError says that this machine cannot enforce any sandbox.
type UnavailableError struct{ Reason string }

func (e *UnavailableError) Error() string {
	return "the sandbox cannot be enforced on this machine: " + e.Reason
}

// PolicyError says that the engine cannot enforce this policy.
type PolicyError struct{ Err error }

func (e *PolicyError) Error() string { return "failed to prepare process sandbox: " + e.Err.Error() }
func (e *PolicyError) Unwrap() error { return e.Err }

// errNoFileSandbox is the error for a file policy that Landlock alone cannot enforce.
var errNoFileSandbox = errors.New("this server confines files by Landlock alone, " +
	"which cannot protect anything in a writable directory, nor hide what may be read around it; its operator can allow other means")

// errNoSockets is the error for sockets, because Landlock does not keep a program from
// connecting to them: neither to those in the file system, whatever the program may read,
// nor to this server's own.
var errNoSockets = errors.New("this server confines commands by Landlock alone, " +
	"which cannot keep one with a network from the sockets of other programs; ask for a sandbox without a network; the operator can also allow other means")

// Confine prepares the enforcement of a policy. The caller must release the Confinement.
func (e *Engine) Confine(s *protocol.Sandbox, ctx Context) (*Confinement, error) {
	if !s.Enforces() {
		return nil, nil
	}
	if e.opts.Mode == ModeOff {
		return nil, &UnavailableError{e.reasonNow()}
	}
	ctx.Hide = append(append([]string(nil), ctx.Hide...), e.opts.Hide...)
	c, err := e.confine(s, ctx)
	if err != nil {
		if _, ok := errors.AsType[*UnavailableError](err); ok {
			return nil, err
		}
		return nil, &PolicyError{err}
	}
	return c, nil
}

func (e *Engine) reasonNow() string {
	_, reason := e.Means()
	return reason
}

// String returns a name of the means for messages.
func (m Means) String() string {
	switch m {
	case MeansUser:
		return "user namespaces"
	case MeansNamespaces:
		return "namespaces"
	case MeansBubblewrap:
		return "bubblewrap"
	case MeansLandlock:
		return "Landlock"
	}
	return fmt.Sprintf("%q", string(m))
}
