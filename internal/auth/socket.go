//go:build linux || darwin || freebsd

package auth

import (
	"errors"
	"net"
	"syscall"
)

// onSocket calls a function with the descriptor of a connection.
func onSocket(conn net.Conn, f func(fd int) error) error {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return errors.New("the connection is not a socket")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}
