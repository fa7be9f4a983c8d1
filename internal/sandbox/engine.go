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

// Mode is what an operator wants of sandboxes.
type Mode string

// The values of Mode.
const (
	ModeAuto     Mode = "auto"     // what clients ask for is enforced, or refused
	ModeRequire  Mode = "require"  // besides, nothing is started without
	ModeOff      Mode = "off"      // what clients ask for is refused
	ModeLandlock Mode = "landlock" // only Landlock is used, for policies that need no more
)

// Means is by what files are confined.
type Means string

// The values of Means.
const (
	MeansNone       Means = "none"
	MeansUser       Means = "userNamespace" // namespaces, made by anybody
	MeansNamespaces Means = "namespaces"    // the same, made by a privileged program
	MeansBubblewrap Means = "bubblewrap"
	MeansLandlock   Means = "landlock"
)

// Options of an Engine. The zero value means the defaults.
type Options struct {
	Log  *slog.Logger // nil: discard
	Mode Mode         // default ModeAuto
	// Bubblewrap is the program of this name; "" looks for it in the usual
	// directories.
	Bubblewrap string
	// Means are those that are tried, in their order; nil: all.
	Means []Means
	// Hide are paths that nothing confined reaches although it has a network.
	Hide []string
	// Sockets of other programs, and directories of such, are within reach of what
	// is confined with a network.
	Sockets []string
	// Secrets returns the files that nothing confined reads or writes, and Trusted
	// those that nothing confined writes, whatever its policy says; nil: there are
	// none. What they return may change.
	Secrets, Trusted func() []string
	// StateDir is where is noted what a killed server would leave; "": the
	// usual place.
	StateDir string
}

// Engine confines programs. All methods may be called concurrently.
type Engine struct {
	opts  Options
	log   *slog.Logger
	first chan struct{} // closed when the first probe is over
	ctx   context.Context
	stop  context.CancelFunc
	state *engineState

	networked networked

	mu     sync.Mutex
	means  Means
	reason string    // why there are no means
	probed time.Time // when that was found
}

// probePause is how long a failed probe is believed.
const probePause = time.Minute

// New makes an engine, which finds out in the background what it can do here.
func New(opts *Options) *Engine {
	e := &Engine{first: make(chan struct{}), means: MeansNone}
	if opts != nil {
		e.opts = *opts
	}
	if e.log = e.opts.Log; e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.opts.Mode == "" {
		e.opts.Mode = ModeAuto
	}
	e.state = newEngineState(&e.opts, e.log)
	e.networked.share = &e.state.share
	e.ctx, e.stop = context.WithCancel(context.Background())
	go func() { // ends when every means has been tried, each within probeTimeout
		defer close(e.first)
		e.probe()
	}()
	return e
}

// Close ends a probe that runs, and gives up what the engine has noted. Nothing
// confined may be left. It may be called again.
func (e *Engine) Close() {
	e.stop()
	<-e.first
	e.state.close()
}

// Mode returns what the operator wants.
func (e *Engine) Mode() Mode { return e.opts.Mode }

// Means returns by what files are confined here, and why by none. It waits until
// that is known.
func (e *Engine) Means() (Means, string) {
	<-e.first
	e.mu.Lock()
	again := e.means == MeansNone && e.opts.Mode != ModeOff && time.Since(e.probed) > probePause
	if again {
		e.probed = time.Now()
	}
	e.mu.Unlock()
	if again {
		e.probe()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.means, e.reason
}

func (e *Engine) probe() {
	means, reason := MeansNone, "it is switched off here (--sandbox=off); run the client without a sandbox "+
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
		e.log.Warn("there are no means to enforce a sandbox; what asks for one is refused", "reason", reason)
	default:
		e.log.Info("sandboxes are enforced", "means", means, "not by", reason)
	}
}

// UnavailableError says that no sandbox can be enforced here.
type UnavailableError struct{ Reason string }

func (e *UnavailableError) Error() string {
	return "sandbox intent cannot be enforced on this executor: " + e.Reason
}

// PolicyError says that this one cannot be.
type PolicyError struct{ Err error }

func (e *PolicyError) Error() string { return "failed to prepare process sandbox: " + e.Err.Error() }
func (e *PolicyError) Unwrap() error { return e.Err }

// errNoFileSandbox is for what Landlock alone cannot enforce.
var errNoFileSandbox = errors.New("this server confines files by Landlock alone (--sandbox=landlock), " +
	"which cannot protect anything in a writable directory, nor hide what may be read around it; use --sandbox=auto")

// errNoSockets is for sockets, which Landlock does not know: neither those in the
// file system, whatever may be read, nor this server's own.
var errNoSockets = errors.New("this server confines commands by Landlock alone (--sandbox=landlock), " +
	"which cannot keep one with a network from the sockets of other programs; ask for a sandbox without a network, or use --sandbox=auto")

// Confine prepares what enforces a policy. The Confinement must be released.
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

// String names a means for messages.
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
