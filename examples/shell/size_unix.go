//go:build unix

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"execserver/client"
)

// followSize gives the command's terminal the size of ours whenever that changes,
// until stop is called.
func followSize(ctx context.Context, command *client.Cmd) (stop func()) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-changes:
				// A server that cannot resize has a terminal of fixed size.
				_ = command.Resize(ctx, *size(int(os.Stdin.Fd())))
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(changes)
		close(done)
	}
}
