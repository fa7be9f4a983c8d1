package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// ReapOrphans waits for the orphans that come to this program because it is a
// subreaper or PID 1, so that none stays a zombie, until ctx ends. It never
// takes an exit status from anybody else: the kernel keeps children by the
// thread that has started them and makes orphans children of the first thread,
// and ReapOrphans waits for the children of the first thread alone.
//
// So it must be called on that thread, which must start no process: main locks
// its goroutine to the thread in an init function and does everything else on
// other goroutines.
func ReapOrphans(ctx context.Context) error {
	if unix.Gettid() != os.Getpid() {
		return errors.New("orphans can be reaped on the program's first thread only; lock main to it in an init function")
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for {
		if err := reapOrphans(); err != nil {
			return err
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reapOrphans waits for those that have ended.
func reapOrphans() error {
	for {
		pid, err := sys.Wait4(-1, nil, unix.WNOHANG|unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case err == unix.EINTR:
		case err == unix.ECHILD, err == nil && pid == 0:
			return nil
		case err != nil:
			return fmt.Errorf("wait for orphans: %w", err)
		default:
			orphansReaped.Add(1)
		}
	}
}
