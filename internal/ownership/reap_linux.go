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

// ReapOrphans reaps the orphans that this program adopts as a subreaper or as PID 1. It
// returns when ctx ends. It never takes an exit status from other code: the kernel assigns
// children to the thread that started them, and orphans to the first thread, and
// ReapOrphans waits for the children of the first thread only.
//
// It must therefore be called on the first thread, which must not start processes: main
// locks its goroutine to the thread in an init function and does everything else on other
// goroutines.
func ReapOrphans(ctx context.Context) error {
	if unix.Gettid() != os.Getpid() {
		return errors.New("orphans can be reaped on the program's first thread only; lock main to it in an init function")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended, ready := make(chan os.Signal, 1), make(chan struct{}, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	list := openChildren()
	if list != noChildrenList {
		defer sys.Close(list)
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watchOrphans(ctx, list, ended, ready)
	}()
	defer func() { cancel(); <-watched }() // before list is closed
	for {
		if err := reapOrphans(); err != nil {
			return err
		}
		select {
		case <-ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// noChildrenList means that the system does not list children.
const noChildrenList = -1

// openChildren opens the list of the first thread's children. A path with the thread's id
// would not do: /proc may belong to another PID namespace, where that is another thread.
func openChildren() (list int) {
	list, err := sys.Open("/proc/thread-self/children", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return noChildrenList
	}
	return list
}

// watchOrphans sends to ready when a child has exited and the first thread has children. It
// returns when ctx ends. Most children that exit belong to other threads, and waking the
// first thread for nothing costs more than reading its list.
func watchOrphans(ctx context.Context, list int, ended <-chan os.Signal, ready chan<- struct{}) {
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
		case ready <- struct{}{}:
		default: // already pending
		}
	}
}

// isEmpty reports whether a list is known to be empty.
func isEmpty(list int) bool {
	if list == noChildrenList {
		return false
	}
	n, err := sys.Pread(list, make([]byte, 1), 0)
	return n == 0 && err == nil
}

// reapOrphans reaps the orphans that have exited.
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
