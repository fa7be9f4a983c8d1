//go:build linux && faults

package faults

import (
	"net"
	"time"

	"execserver/internal/fault"
)

// listener accepts connections whose methods can fail.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	if err := fault.At("accept"); err != nil {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: err}
	}
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return conn{c.(*net.TCPConn)}, nil
}

// conn breaks when one of its methods fails, like a real connection.
type conn struct{ *net.TCPConn }

func (c conn) failed(op string, err error) error {
	_ = c.TCPConn.SetLinger(0)
	_ = c.TCPConn.CloseWrite()
	_ = c.TCPConn.CloseRead()
	return &net.OpError{Op: op, Net: "tcp", Err: err}
}

func (c conn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if injected := fault.At("conn read"); injected != nil {
		return 0, c.failed("read", injected)
	}
	return n, err
}

func (c conn) Write(b []byte) (int, error) {
	if err := fault.At("conn write"); err != nil {
		n, _ := c.TCPConn.Write(b[:len(b)/2])
		return n, c.failed("write", err)
	}
	return c.TCPConn.Write(b)
}

func (c conn) Close() error {
	err := c.TCPConn.Close()
	if injected := fault.At("conn close"); injected != nil {
		return injected
	}
	return err
}

func (c conn) SetDeadline(t time.Time) error {
	if err := fault.At("conn deadline"); err != nil {
		return err
	}
	return c.TCPConn.SetDeadline(t)
}
