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

func (o *Flags) wantsKeeper() bool { return false }

func shownByKeeper() bool { return false }

func (o *Flags) keep() error { return errors.ErrUnsupported }

func becomeHelper() {}

func own(_ *Flags, _ *slog.Logger) (*ownership.Ownership, error) {
	return ownership.New(nil)
}

func Ending() []os.Signal { return []os.Signal{syscall.SIGTERM, os.Interrupt} }
