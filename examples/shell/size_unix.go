//go:build unix

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"execserver/client"
)

// followSize copies the size of this terminal to that of the command whenever it changes,
// until the caller calls stop.
func followSize(ctx context.Context, command *client.Cmd) (stop func()) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-changes:
				// A server that cannot resize leaves the command's terminal at its first
				// size.
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
