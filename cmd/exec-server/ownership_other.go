//go:build !linux

package main

import (
	"errors"
	"log/slog"
	"os"
	"syscall"

	"execserver/process"
)

func runFirstThread() { select {} }

func (o *options) wantsKeeper() bool { return o.keeper == "on" }

func (o *options) keep() error { return errors.New("--keeper=on needs Linux") }

func clearLeft() {}

func own(o *options, _ *slog.Logger) (*process.Ownership, error) {
	if o.cgroups == "on" {
		return nil, errors.New("--cgroups=on needs Linux")
	}
	return process.NewOwnership(nil)
}

func ending() []os.Signal { return []os.Signal{syscall.SIGTERM, os.Interrupt} }
