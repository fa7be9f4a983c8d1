package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/keeper"
	"execserver/process"
)

// keptBy is what the keeper has told this program, if it has one.
var keptBy, isKept = keeper.Server()

// wantsKeeper decides whether this program becomes the keeper of another.
func (o *options) wantsKeeper() bool {
	switch {
	case isKept || o.keeper == "off":
		return false
	case o.keeper == "on":
		return true
	}
	// With PID 1 the kernel kills everything that it could see to.
	return os.Getpid() != 1
}

// keep makes this program the keeper of another that serves. It returns only if
// that fails.
func (o *options) keep() error {
	info, lock, err := o.newInfo()
	if err != nil {
		return err
	}
	if lock >= 0 {
		// The lock must last from here to the end of the keeper.
		_, _ = unix.FcntlInt(uintptr(lock), unix.F_SETFD, 0)
	}
	return fmt.Errorf("become the keeper of the server: %w", keeper.Start(info))
}

// newInfo prepares what keeper and server have in common. lock holds the claimed
// control groups; -1: there are none.
func (o *options) newInfo() (info keeper.Info, lock int, err error) {
	info.Series = process.NewSeries()
	lock = -1
	claimed, reason, err := o.claimCgroups()
	if claimed != nil {
		info.Cgroups, lock = claimed.Path(), claimed.Fd()
	}
	info.Reason = reason
	return info, lock, err
}

// keeperTimeout bounds how long a keeper kills what a server has left.
const keeperTimeout = 10 * time.Second

// clearLeft kills what a server has left, if this is its keeper, and ends as the
// server has.
func clearLeft() {
	info, ok := keeper.Left()
	if !ok {
		return
	}
	ownership, err := ownershipOf(info, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		fmt.Fprintf(os.Stderr, "Error: find what the server has left: %s\n", err)
		os.Exit(1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		ownership.KillAll(keeperTimeout)
		cancel()
	}()
	_ = process.ReapOrphans(ctx) // the context's cause
	ownership.Close()
	keeper.EndAs(info.Status)
}
