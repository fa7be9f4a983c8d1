package serve

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/keeper"
	"execserver/internal/ownership"
	"execserver/internal/workspace"
	"execserver/server"
)

// keptBy holds what the keeper passed to this program. It is valid only if isKept is
// true.
var (
	keptBy keeper.Info
	isKept bool
)

// wantsKeeper reports whether this program becomes the keeper of another.
func (o *Flags) wantsKeeper() bool {
	// When PID 1 ends, the kernel kills everything that a keeper could.
	return !isKept && os.Getpid() != 1 && !slices.Contains(o.without, withoutKeeper)
}

// keep makes this program the keeper of another one that serves. It returns only if that
// fails.
func (o *Flags) keep() error {
	info, lock := o.newInfo()
	if lock >= 0 {
		// The lock must last until the keeper ends.
		_, _ = unix.FcntlInt(uintptr(lock), unix.F_SETFD, 0)
	}
	return fmt.Errorf("become the keeper of the server: %w", keeper.Keep(info))
}

// shownByKeeper reports whether the keeper has started this program where it sees the
// workspaces.
func shownByKeeper() bool { return isKept && keptBy.Private != "" }

// newInfo prepares what the keeper and the server share. lock is the descriptor of the
// claimed control groups, or -1.
func (o *Flags) newInfo() (info keeper.Info, lock int) {
	info.ProgramID, info.Private, info.LogFormat = ownership.NewProgramID(), o.private, o.LogFormat
	lock = -1
	claimed, reason := o.claimCgroups()
	if claimed != nil {
		info.Cgroups, lock = claimed.Path(), claimed.Fd()
	}
	info.Reason = reason
	return info, lock
}

// becomeHelper makes this program a helper in a sandbox, or kills what a keeper's server
// left, and does not return, if it was started for that.
func becomeHelper() {
	if err := workspace.Run(); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %s\n", err)
		os.Exit(1)
	}
	server.RunHelper()
	clearLeft()
	keptBy, isKept = keeper.Server()
}

// keeperTimeout bounds how long a keeper kills what a server left behind.
const keeperTimeout = 10 * time.Second

// clearLeft kills what a server left behind, if this program is its keeper, and ends as
// the server did.
func clearLeft() {
	info, ok := keeper.Left()
	if !ok {
		return
	}
	log := newLog(os.Stderr, info.LogFormat, slog.LevelInfo)
	left, err := ownershipOf(info, log)
	if err != nil {
		log.Error("cannot find what the server has left", "error", err)
		os.Exit(1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		left.KillAll(keeperTimeout)
		cancel()
	}()
	_ = ownership.ReapOrphans(ctx) // the context's cause
	left.Close()
	keeper.EndAs(info.Status)
}
