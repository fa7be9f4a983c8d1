//go:build !linux

package sandbox

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"runtime"

	"execserver/protocol"
)

type engineState struct{ share share }

func newEngineState(*Options, *slog.Logger) *engineState { return &engineState{} }

func (*engineState) close() {}

func (e *Engine) findMeans() (Means, string) {
	return MeansNone, "there are no sandboxes on " + runtime.GOOS +
		"; run the client without one (danger-full-access) if this machine is one itself"
}

// Confinement is a policy that is ready to be enforced; here none ever is.
type Confinement struct{}

// Release gives back what the confinement has made.
func (*Confinement) Release() {}

// Command is what is started in a confinement.
type Command struct {
	Program  string
	Argv     []string
	Env      []string
	Dir      string
	Terminal bool
	Shared   bool
	Become   bool
}

// Run runs a command in the confinement.
func (*Confinement) Run(context.Context, Command, func(*exec.Cmd)) error {
	return errors.ErrUnsupported
}

func (e *Engine) confine(*protocol.Sandbox, Context) (*Confinement, error) {
	_, reason := e.Means()
	return nil, &UnavailableError{reason}
}

// Hides is for what is confined, which nothing is here.
func (*Engine) Hides(*os.File) bool { return false }

// ReserveThreads does nothing: there are no confined commands here.
func ReserveThreads() {}
