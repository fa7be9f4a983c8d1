package ownership

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// ReapOrphans waits for the orphans that this program adopts as a subreaper or as PID 1,
// so that none stays a zombie. It returns when ctx ends. It never steals an exit status:
// the kernel keeps children by the thread that has started them and makes orphans
// children of the first thread, and ReapOrphans waits for the children of the first
// thread only.
//
// It must therefore be called on the first thread, which must start no process: main
// locks its goroutine to the thread in an init function and does everything else on
// other goroutines.
func ReapOrphans(ctx context.Context) error {
	if unix.Gettid() != os.Getpid() {
		return errors.New("orphans can be reaped on the program's first thread only; lock main to it in an init function")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended, some := make(chan os.Signal, 1), make(chan struct{}, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	list := openChildren()
	if list != unknownChildren {
		defer sys.Close(list)
	}
	noticed := make(chan struct{})
	go func() {
		defer close(noticed)
		noticeOrphans(ctx, list, ended, some)
	}()
	defer func() { cancel(); <-noticed }() // before list is closed
	for {
		if err := reapOrphans(); err != nil {
			return err
		}
		select {
		case <-some:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unknownChildren stands for a list of children that the system does not have.
const unknownChildren = -1

// openChildren opens the list of the children of this thread, the first one. The number of
// the thread would not do: /proc may be that of another process namespace, where it is
// another thread's.
func openChildren() (list int) {
	list, err := sys.Open("/proc/thread-self/children", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return unknownChildren
	}
	return list
}

// noticeOrphans sends to some when a child has ended and the first thread has children. It
// ends with ctx. Most children that end belong to the threads that have started them, and
// to wake the first thread for nothing costs more than to read its list.
func noticeOrphans(ctx context.Context, list int, ended <-chan os.Signal, some chan<- struct{}) {
	for {
		select {
		case <-ended:
		case <-ctx.Done():
			return
		}
		if isEmpty(list) {
			continue
		}
		select {
		case some <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// isEmpty reports whether a list is known to be empty.
func isEmpty(list int) bool {
	if list == unknownChildren {
		return false
	}
	n, err := sys.Pread(list, make([]byte, 1), 0)
	return n == 0 && err == nil
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
