//go:build !linux

package main

import (
	"errors"
	"log/slog"
	"os"
	"syscall"

	"execserver/internal/ownership"
)

func runFirstThread() { select {} }

func (o *options) wantsKeeper() bool { return o.keeper == "on" }

func shownByKeeper() bool { return false }

func (o *options) keep() error { return errors.New("--keeper=on needs Linux") }

func becomeHelper() {}

func own(o *options, _ *slog.Logger) (*ownership.Ownership, error) {
	if o.cgroups == "on" {
		return nil, errors.New("--cgroups=on needs Linux")
	}
	return ownership.New(nil)
}

func ending() []os.Signal { return []os.Signal{syscall.SIGTERM, os.Interrupt} }
