package serve

import (
	"context"
	"log/slog"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"execserver/internal/cgroup"
	"execserver/internal/keeper"
	"execserver/internal/ownership"
)

// reap receives the log when the program must reap orphans.
var reap = make(chan *slog.Logger, 1)

// runFirstThread does all the work of the first thread.
func runFirstThread() {
	log := <-reap
	err := ownership.ReapOrphans(context.Background())
	log.Error("cannot reap orphans any more", "error", err)
	select {}
}

// claimCgroups claims control groups for the server. reason says why there are none.
func (o *Flags) claimCgroups() (claimed *cgroup.Claimed, reason string) {
	if slices.Contains(o.without, withoutCgroups) {
		return nil, "the server uses no control groups (--without=cgroups)"
	}
	claimed, err := cgroup.Claim(ownership.CgroupControllers)
	if err != nil {
		return nil, "there are no control groups for the server: " + err.Error()
	}
	return claimed, ""
}

// ownershipOf returns the Ownership with which both keeper and server find descendants.
func ownershipOf(info keeper.Info, log *slog.Logger) (*ownership.Ownership, error) {
	return ownership.New(&ownership.Options{
		Log: log, Subreaper: true, Cgroups: info.Cgroups, NoCgroups: info.Reason, ProgramID: info.ProgramID,
	})
}

// own makes this program the owner of everything that its processes start.
func own(o *Flags, log *slog.Logger) (*ownership.Ownership, error) {
	info := keptBy
	if !isKept {
		info, _ = o.newInfo()
	}
	owned, err := ownershipOf(info, log)
	if err != nil {
		return nil, err
	}
	reap <- log
	log.Info("tracking descendants", "means", owned.Means(), "cgroups", info.Cgroups, "without", info.Reason,
		"limits", owned.Limits(), "keeper", isKept)
	return owned, nil
}

// Ending returns the signals that shut the server down in order. Container runtimes also
// send others to PID 1.
func Ending() []os.Signal {
	signals := []os.Signal{unix.SIGTERM, unix.SIGINT}
	if os.Getpid() == 1 {
		const sigRTMin3 = unix.Signal(34 + 3)
		signals = append(signals, unix.SIGQUIT, unix.SIGPWR, sigRTMin3)
	}
	return signals
}
