package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"execserver/internal/cgroup"
	"execserver/internal/keeper"
	"execserver/process"
)

// The first thread starts no process, and waits for orphans: see
// process.ReapOrphans.
func init() { runtime.LockOSThread() }

// reap gets the log when orphans are to be waited for.
var reap = make(chan *slog.Logger, 1)

// runFirstThread is all that the first thread does.
func runFirstThread() {
	log := <-reap
	err := process.ReapOrphans(context.Background())
	log.Error("orphans are not waited for any more", "error", err)
	select {}
}

// claimCgroups claims control groups as --cgroups wants it; without them, it
// tells the reason.
func (o *options) claimCgroups() (claimed *cgroup.Claimed, reason string, err error) {
	if o.cgroups == "off" {
		return nil, "the server uses no control groups (--cgroups=off)", nil
	}
	claimed, err = cgroup.Claim(process.CgroupControllers)
	switch {
	case err == nil:
		return claimed, "", nil
	case o.cgroups == "on":
		return nil, "", fmt.Errorf("--cgroups=on: %w", err)
	}
	return nil, "there are no control groups for the server: " + err.Error(), nil
}

// ownershipOf makes what both keeper and server find descendants with.
func ownershipOf(info keeper.Info, log *slog.Logger) (*process.Ownership, error) {
	return process.NewOwnership(&process.OwnershipOptions{
		Log: log, Subreaper: true, Cgroups: info.Cgroups, NoCgroups: info.Reason, Series: info.Series,
	})
}

// own makes this program the owner of everything that its processes start.
func own(o *options, log *slog.Logger) (*process.Ownership, error) {
	info := keptBy
	if !isKept {
		var err error
		if info, _, err = o.newInfo(); err != nil {
			return nil, err
		}
	}
	ownership, err := ownershipOf(info, log)
	if err != nil {
		return nil, err
	}
	reap <- log
	log.Info("descendants are held together", "means", ownership.Means(), "cgroups", info.Cgroups, "without", info.Reason,
		"limits", ownership.Limits(), "keeper", isKept)
	return ownership, nil
}

// ending are the signals that end the server in an orderly way. Container
// runtimes end PID 1 by more of them.
func ending() []os.Signal {
	signals := []os.Signal{unix.SIGTERM, unix.SIGINT}
	if os.Getpid() == 1 {
		const sigRTMin3 = unix.Signal(34 + 3)
		signals = append(signals, unix.SIGQUIT, unix.SIGPWR, sigRTMin3)
	}
	return signals
}
