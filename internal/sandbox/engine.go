// Package sandbox confines programs as clients request (see "Sandbox" in PROTOCOL.md, and
// docs/design/sandbox.md for the design).
//
// Start at [Engine.Confine]. resolve turns a policy of the wire into a plan of mounts,
// and the plan becomes a [Confinement]. [Confinement.Launch] prepares what to start: this
// program as a launcher (package launcher), directly or within bubblewrap.
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

// Mechanism is a way to confine files.
type Mechanism string

// The values of Mechanism.
const (
	MechanismNone       Mechanism = "none"
	MechanismUser       Mechanism = "userNamespace" // namespaces, created by any user
	MechanismNamespaces Mechanism = "namespaces"    // namespaces, created by a privileged program
	MechanismBubblewrap Mechanism = "bubblewrap"
	MechanismLandlock   Mechanism = "landlock"
)

// Options of an Engine. The zero value means the defaults.
type Options struct {
	Log  *slog.Logger // nil: discard
	Mode Mode         // default ModeAuto
	// Bubblewrap is the path of the program bwrap; "" searches the usual directories.
	Bubblewrap string
	// Mechanisms are those to try, in order; nil means all.
	Mechanisms []Mechanism
	// Hide are paths that no confined command reaches, even with a network.
	Hide []string
	// Private are further directories with state of this program. No confined command sees
	// anything in them, whatever its policy grants.
	Private []string
	// Sockets are sockets of other programs, or directories of such sockets, that a
	// confined command with a network may use.
	Sockets []string
	// Secrets returns the files that no confined command may read or write, and Trusted the
	// files that none may write, whatever its policy grants. nil means none. The results may
	// change.
	Secrets, Trusted func() []string
	// StateDir is the directory in which the server records the mount points that it creates,
	// to remove them after a crash; "" is the default.
	StateDir string
	// ProbeTimeout bounds the probe of each mechanism; default a minute. A busy machine
	// takes seconds; a longer probe hangs, and every client waits for it.
	ProbeTimeout time.Duration
}

// Engine confines programs. Its methods may be called concurrently.
type Engine struct {
	opts  Options
	log   *slog.Logger
	ctx   context.Context
	stop  context.CancelFunc
	state *engineState

	mu        sync.Mutex
	probe     chan struct{} // closed when the last probe has ended; its result follows
	mechanism Mechanism
	reason    string // why there is no mechanism
	probed    time.Time
}

// probePause is how long the result of a failed probe is valid.
const probePause = time.Minute

// New returns an engine. The engine probes the machine in the background.
func New(opts *Options) *Engine {
	e := &Engine{mechanism: MechanismNone}
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

// Mechanism returns the mechanism that confines files on this machine, or why there is none.
// It waits for a running probe, at most ProbeTimeout for each mechanism.
func (e *Engine) Mechanism() (Mechanism, string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.awaitProbeLocked()
	if e.mechanism == MechanismNone && e.opts.Mode != ModeOff && e.ctx.Err() == nil && time.Since(e.probed) > probePause {
		e.probeLocked()
		e.awaitProbeLocked()
	}
	return e.mechanism, e.reason
}

// awaitProbeLocked waits for the running probe, if any.
func (e *Engine) awaitProbeLocked() {
	probe := e.probe
	e.mu.Unlock()
	<-probe
	e.mu.Lock()
}

// probeLocked begins a probe, which ends when every mechanism has been tried, or with Close.
func (e *Engine) probeLocked() {
	ended := make(chan struct{})
	e.probe = ended
	go func() {
		defer close(ended)
		e.runProbe()
	}()
}

// runProbe records the mechanism that works on this machine.
func (e *Engine) runProbe() {
	mechanism, reason := MechanismNone, "sandboxes are switched off here; run the client without a sandbox "+
		"(danger-full-access) if this machine is one itself"
	if e.opts.Mode != ModeOff {
		mechanism, reason = e.findMechanism()
	}
	e.mu.Lock()
	e.mechanism, e.reason, e.probed = mechanism, reason, time.Now()
	e.mu.Unlock()
	switch {
	case e.opts.Mode == ModeOff, e.ctx.Err() != nil:
	case mechanism == MechanismNone:
		e.log.Warn("no mechanism to enforce a sandbox; requests for one are refused", "reason", reason)
	default:
		log := e.log.With("mechanism", mechanism)
		if reason != "" {
			log = log.With("unusable", reason)
		}
		log.Info("sandboxes are enforced")
	}
}

// UnavailableError reports that this machine cannot enforce any sandbox.
type UnavailableError struct{ Reason string }

func (e *UnavailableError) Error() string {
	return "the sandbox cannot be enforced on this machine: " + e.Reason
}

// PolicyError reports that the engine cannot enforce this policy.
type PolicyError struct{ Err error }

func (e *PolicyError) Error() string { return "failed to prepare process sandbox: " + e.Err.Error() }
func (e *PolicyError) Unwrap() error { return e.Err }

// errNoFileSandbox is the error for a file policy that Landlock alone cannot enforce.
var errNoFileSandbox = errors.New("this server confines files by Landlock alone, " +
	"which cannot protect anything in a writable directory, nor hide what may be read around it; its operator can allow other mechanisms")

// errNoSockets is the error for sockets, because Landlock does not keep a program from
// connecting to them: neither to those in the file system, whatever the program may read,
// nor to this server's own.
var errNoSockets = errors.New("this server confines commands by Landlock alone, " +
	"which cannot keep one with a network from the sockets of other programs; ask for a sandbox without a network; the operator can also allow other mechanisms")

// Confine prepares the enforcement of a policy. The caller must release the Confinement.
func (e *Engine) Confine(s *protocol.Sandbox, ctx Context) (*Confinement, error) {
	if !s.Enforces() {
		return nil, nil
	}
	if e.opts.Mode == ModeOff {
		return nil, &UnavailableError{e.unavailableReason()}
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

func (e *Engine) unavailableReason() string {
	_, reason := e.Mechanism()
	return reason
}

// String returns the name for messages.
func (m Mechanism) String() string {
	switch m {
	case MechanismUser:
		return "user namespaces"
	case MechanismNamespaces:
		return "namespaces"
	case MechanismBubblewrap:
		return "bubblewrap"
	case MechanismLandlock:
		return "Landlock"
	}
	return fmt.Sprintf("%q", string(m))
}
