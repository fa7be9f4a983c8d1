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

func (o *Flags) wantsKeeper() bool { return o.keeper == "on" }

func shownByKeeper() bool { return false }

func (o *Flags) keep() error { return errors.New("--keeper=on needs Linux") }

func becomeHelper() {}

func own(o *Flags, _ *slog.Logger) (*ownership.Ownership, error) {
	if o.cgroups == "on" {
		return nil, errors.New("--cgroups=on needs Linux")
	}
	return ownership.New(nil)
}

func Ending() []os.Signal { return []os.Signal{syscall.SIGTERM, os.Interrupt} }
