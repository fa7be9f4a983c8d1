package serve

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"execserver/internal/cgroup"
	"execserver/internal/ownership"
	"execserver/internal/supervisor"
	"execserver/internal/sys"
)

// reap receives the log when the program has to reap orphans.
var reap = make(chan *slog.Logger, 1)

// runFirstThread is the loop of the first thread.
func runFirstThread() {
	log := <-reap
	err := ownership.ReapOrphans(context.Background())
	log.Error("cannot reap orphans any more", "error", err)
	select {}
}

// claimCgroups claims control groups for the server. reason explains why it has none.
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

// ownershipOf returns the Ownership by which both the supervisor and the server find descendants.
func ownershipOf(info supervisor.Info, log *slog.Logger) (*ownership.Ownership, error) {
	return ownership.New(&ownership.Options{
		Log: log, Subreaper: true, Cgroups: info.Cgroups, NoCgroups: info.Reason,
	})
}

// own makes this program the owner of all descendants of its processes.
func own(o *Flags, log *slog.Logger) (*ownership.Ownership, error) {
	info := supervisedBy
	if !isSupervised {
		info, _ = o.newInfo()
	}
	owned, err := ownershipOf(info, log)
	if err != nil {
		return nil, err
	}
	reap <- log
	log.Info("tracking descendants", "mechanism", owned.Mechanism(), "cgroups", info.Cgroups, "without", info.Reason,
		"limits", owned.Limits(), "supervisor", isSupervised)
	return owned, nil
}

// Ending returns the signals that shut the server down in order. Container runtimes send
// additional ones to PID 1.
func Ending() []os.Signal {
	signals := []os.Signal{unix.SIGTERM, unix.SIGINT}
	if os.Getpid() == 1 {
		const sigRTMin3 = unix.Signal(34 + 3)
		signals = append(signals, unix.SIGQUIT, unix.SIGPWR, sigRTMin3)
	}
	return signals
}

// InheritNothing keeps the inherited descriptors of this program from its children. Go does that
// only for descriptors that it opened.
func InheritNothing() error { return sys.CloseOnExecFrom(3) }

// interruptible returns a file for stdin whose Close interrupts a read. It reopens a pipe in
// non-blocking mode, and leaves the mode of the original alone, because other processes may share
// it. If that fails, it returns stdin.
func interruptible(stdin *os.File) *os.File {
	var st unix.Stat_t
	if unix.Fstat(int(stdin.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return stdin
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(stdin.Fd())), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return stdin
	}
	if null, err := os.Open(os.DevNull); err == nil {
		// Let the writer notice when the other descriptor is closed.
		_ = unix.Dup3(int(null.Fd()), int(stdin.Fd()), 0)
		_ = null.Close()
	}
	return os.NewFile(uintptr(fd), stdin.Name())
}

// awaitNoReader waits until the reader of a pipe or socket is gone. It returns false if it cannot
// detect that.
func awaitNoReader(stdout *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(stdout.Fd())}} // poll always reports errors
	for {
		_, err := unix.Poll(fds, -1)
		if err != unix.EINTR {
			return err == nil && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
		}
	}
}

// startedAs returns the id of the process that systemd started: this one or its supervisor.
func startedAs() int {
	if isSupervised {
		return supervisedBy.Supervisor
	}
	return os.Getpid()
}

// isListening reports whether a descriptor is a listening socket.
func isListening(fd int) bool {
	value, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && value != 0
}

// reloading notifies systemd of a reload. READY=1 follows.
func (s serviceManager) reloading() {
	var now unix.Timespec
	if s == "" || unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return
	}
	s.Say(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
}
