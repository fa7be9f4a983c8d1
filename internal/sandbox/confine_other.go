//go:build !linux

package sandbox

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"time"

	"execserver/protocol"
)

type engineState struct{}

func newEngineState(*Options, *slog.Logger) *engineState { return &engineState{} }

func (*engineState) close() {}

func (e *Engine) findMechanism() (Mechanism, string) {
	return MechanismNone, "there are no sandboxes on " + runtime.GOOS +
		"; run the client without one (danger-full-access) if this machine is one itself"
}

// Confinement is never created on this system.
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
	Exec     bool
}

// Run runs a command in the confinement.
func (*Confinement) Run(context.Context, Command, func(*exec.Cmd)) error {
	return errors.ErrUnsupported
}

func (e *Engine) confine(*protocol.Sandbox, Context) (*Confinement, error) {
	_, reason := e.Mechanism()
	return nil, &UnavailableError{reason}
}

// Hides returns false: nothing is confined on this system.
func (*Engine) Hides(*os.File) bool { return false }

// IsIsolated returns false: nothing is confined on this system.
func IsIsolated(int) bool { return false }

// ReserveThreads does nothing: this system has no confined commands.
func ReserveThreads() {}

// CheckSecrets accepts all files, because this system has no sandboxes that hide them.
func CheckSecrets([]string) error { return nil }

// isOwn returns false. A system without sandboxes never calls it.
func isOwn(fs.FileInfo) bool { return false }

func inode(fs.FileInfo) uint64 { return 0 }

func changeTime(info fs.FileInfo) time.Time { return info.ModTime() }
