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

type engineState struct{}

func newEngineState(*Options, *slog.Logger) *engineState { return &engineState{} }

func (*engineState) close() {}

func (e *Engine) findMeans() (Means, string) {
	return MeansNone, "there are no sandboxes on " + runtime.GOOS +
		"; run the client without one (danger-full-access) if this machine is one itself"
}

// Confinement is a policy that is ready to be enforced. This system has none.
type Confinement struct{}

// Release does nothing.
func (*Confinement) Release() {}

// Command is the command to start in a confinement.
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

// Hides returns false: nothing is confined on this system.
func (*Engine) Hides(*os.File) bool { return false }

// ReserveThreads does nothing: this system has no confined commands.
func ReserveThreads() {}

// CheckSecrets accepts all files, because nothing hides them here.
func CheckSecrets([]string) error { return nil }
