package serve

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/cli/serve/workspace"
	"execserver/internal/ownership"
	"execserver/internal/supervisor"
	"execserver/server"
)

// supervisedBy holds what the supervisor passed to this program. It is valid only if isSupervised is
// true.
var (
	supervisedBy supervisor.Info
	isSupervised bool
)

// wantsSupervisor reports whether this program should become a supervisor.
func (o *Flags) wantsSupervisor() bool {
	// When PID 1 ends, the kernel kills everything that a supervisor would.
	return !isSupervised && os.Getpid() != 1 && !slices.Contains(o.without, withoutSupervisor)
}

// keep makes this program the supervisor of another one that serves. It returns only if that
// fails.
func (o *Flags) keep() error {
	info, lock := o.newInfo()
	if lock >= 0 {
		// The lock must last until the supervisor ends.
		_, _ = unix.FcntlInt(uintptr(lock), unix.F_SETFD, 0)
	}
	return fmt.Errorf("become the supervisor of the server: %w", supervisor.Run(info))
}

// shownBySupervisor reports whether the supervisor has mounted the workspaces for this program.
func shownBySupervisor() bool { return isSupervised && supervisedBy.Private != "" }

// newInfo prepares what the supervisor and the server share. lock is the descriptor of the
// claimed control groups, or -1.
func (o *Flags) newInfo() (info supervisor.Info, lock int) {
	info.Private, info.LogFormat = o.private, o.LogFormat
	lock = -1
	claimed, reason := o.claimCgroups()
	if claimed != nil {
		info.Cgroups, lock = claimed.Path(), claimed.Fd()
	}
	info.Reason = reason
	return info, lock
}

// becomeHelper makes this program a helper in a sandbox, or kills the remains of a supervised
// server, if it was started for that. Then it does not return.
func becomeHelper() {
	if err := workspace.Run(); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %s\n", err)
		os.Exit(1)
	}
	server.RunHelper()
	clearLeft()
	supervisedBy, isSupervised = supervisor.Server()
}

// supervisorTimeout bounds the kill loop of a supervisor.
const supervisorTimeout = 10 * time.Second

// clearLeft kills the remains of a server, if this program is its supervisor, and ends like the
// server.
func clearLeft() {
	info, ok := supervisor.Left()
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
		left.KillAll(supervisorTimeout)
		cancel()
	}()
	_ = ownership.ReapOrphans(ctx) // the context's cause
	left.Close()
	supervisor.EndAs(info.Status)
}
