package peer

import (
	"context"
	"fmt"
	"time"
)

// AwaitRead waits until the peer has read everything that this program has sent. It proves that
// a process holds the peer's socket: one in flight between unix sockets has no reader, even if
// a program will receive it one day, while the process that made it has sent everything and
// ended.
func (s Socket) AwaitRead(ctx context.Context) error {
	for pause := acceptPause; ; pause = min(2*pause, maxAcceptPause) {
		// In this order: what has left the one end is at the other.
		own, err := FindTCP(s.remote, s.local)
		if err != nil {
			return err
		}
		its, err := FindTCP(s.local, s.remote)
		switch {
		case err != nil:
			return err
		case its.Inode != s.Inode:
			return errPeerGone
		case its.above != "":
			return its.noProofOfReader()
		case own.unsent == 0 && its.unread == 0:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no process reads at the other end of this connection: %w", context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// noProofOfReader returns why AwaitRead would prove nothing about a socket with a protocol above
// TCP: the kernel passes on to that what arrives, whether a process reads it or not.
func (s Socket) noProofOfReader() error {
	return &UnknownError{"no process that this program may examine holds its other end, and over the protocol " + s.above +
		" it cannot be seen whether one reads, as it can over plain TCP"}
}
