package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// flushTimeout bounds how long a connection may take to accept the data before the end of its
// stream.
const flushTimeout = 10 * time.Second

// Relay copies data between a stream and a connection until both are over or ctx ends. It
// forwards the ends and resets of each side, and closes both.
func Relay(ctx context.Context, conn net.Conn, s *Stream) {
	stop := context.AfterFunc(ctx, func() {
		s.Reset(closedText)
		abort(conn)
	})
	defer stop()
	s.OnFail(func(err error) {
		if _, reset := errors.AsType[*ResetError](err); !reset {
			abort(conn)
			return
		}
		_ = conn.SetWriteDeadline(time.Now().Add(flushTimeout))
		_ = conn.SetReadDeadline(time.Now()) // the other side does not want the rest
	})
	var wg sync.WaitGroup
	written := make(chan error, 1)
	wg.Go(func() {
		_, err := io.Copy(conn, onlyReader{s})
		if err == nil {
			err = closeWrite(conn)
		}
		written <- err
		// The other end may have stopped reading and still write. Until it has finished, the
		// stream must not wait for credit.
		_, _ = io.Copy(io.Discard, onlyReader{s})
	})
	_, readErr := io.Copy(onlyWriter{s}, conn)
	switch {
	case s.isOver(): // it has failed, and the data before the failure is written
	case readErr != nil:
		s.Fail(readErr.Error())
		_ = conn.Close()
	default:
		_ = s.CloseWrite()
	}
	if err := <-written; err != nil {
		s.Fail(err.Error())
		abort(conn)
	}
	wg.Wait()
	_ = conn.Close()
	select {
	case <-s.Over():
	case <-ctx.Done():
	}
}

func (s *Stream) isOver() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// onlyReader and onlyWriter hide the other methods of a stream from io.Copy.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// closeWrite ends the direction to the other end of a connection.
func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// abort closes a connection with a reset.
func abort(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
