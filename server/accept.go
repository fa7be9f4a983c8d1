package server

import (
	"errors"
	"log/slog"
	"net"
	"syscall"
	"time"
)

// patient is a listener that continues after an error of one accept: when the kernel is
// short of memory or descriptors, or a filter refuses a peer, others can still connect
// later.
type patient struct {
	net.Listener
	log *slog.Logger
}

// Accept waits for the next connection. It returns an error only when the listener is
// closed or broken.
func (l patient) Accept() (net.Conn, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		conn, err := l.Listener.Accept()
		if err == nil || !transient(err) {
			return conn, err
		}
		l.log.Warn("cannot accept a connection", "error", err, "retryAfter", pause)
		time.Sleep(pause)
	}
}

// transient reports whether an accept error says nothing about the listener itself.
func transient(err error) bool {
	number, ok := errors.AsType[syscall.Errno](err)
	switch {
	case !ok, errors.Is(err, net.ErrClosed):
		return false
	case number == syscall.EBADF, number == syscall.EINVAL, number == syscall.ENOTSOCK:
		return false
	}
	return true
}
