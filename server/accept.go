package server

import (
	"errors"
	"log/slog"
	"net"
	"syscall"
	"time"
)

// patient is a listener that goes on after an error of one accept: when the
// kernel is short of memory or descriptors, or a filter refuses a peer, others
// can still connect later.
type patient struct {
	net.Listener
	log *slog.Logger
}

// Accept waits for the next connection. It returns an error only when the
// listener is no more.
func (l patient) Accept() (net.Conn, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		conn, err := l.Listener.Accept()
		if err == nil || !passing(err) {
			return conn, err
		}
		l.log.Warn("cannot accept a connection", "error", err, "retryAfter", pause)
		time.Sleep(pause)
	}
}

// passing reports whether an error of accept says nothing about the listener.
func passing(err error) bool {
	number, ok := errors.AsType[syscall.Errno](err)
	switch {
	case !ok, errors.Is(err, net.ErrClosed):
		return false
	case number == syscall.EBADF, number == syscall.EINVAL, number == syscall.ENOTSOCK:
		return false
	}
	return true
}
