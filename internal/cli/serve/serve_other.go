//go:build !linux

package serve

import (
	"errors"
	"log/slog"
	"os"
	"syscall"

	"execserver/internal/ownership"
)

func runFirstThread() { select {} }

func (o *Flags) wantsSupervisor() bool { return false }

func shownBySupervisor() bool { return false }

func (o *Flags) keep() error { return errors.ErrUnsupported }

func becomeHelper() {}

func own(_ *Flags, _ *slog.Logger) (*ownership.Ownership, error) {
	return ownership.New(nil)
}

func Ending() []os.Signal { return []os.Signal{syscall.SIGTERM, os.Interrupt} }

func InheritNothing() error { return nil }

func interruptible(stdin *os.File) *os.File { return stdin }

func awaitNoReader(*os.File) bool { return false }

// startedAs returns no process: only Linux has systemd.
func startedAs() int { return -1 }

func isListening(int) bool { return false }

func (serviceManager) reloading() {}
