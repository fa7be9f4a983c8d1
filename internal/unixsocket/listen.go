// Package unixsocket makes the unix sockets on which the command listens. The permissions
// of a socket say who may connect.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"execserver/internal/sys"
)

// Listen listens on a unix socket with mode 0600. It replaces the socket of a dead
// server. It refuses that of a live server, and a path that is not a socket.
func Listen(path string) (net.Listener, error) { return listen(path, 0o600) }

// ListenForAll is like Listen, for a server that asks the system who connects:
// every user who reaches the socket can connect. It refuses a directory in which another
// user could replace the socket, because clients of other users cannot recognize it by
// its owner.
func ListenForAll(path string) (net.Listener, error) {
	if err := checkDirectory(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("listen on unix socket %s: %w", path, sys.WrapError(err))
	}
	return listen(path, 0o666)
}

func listen(path string, mode fs.FileMode) (net.Listener, error) {
	if limit := len(syscall.RawSockaddrUnix{}.Path) - 1; len(path) > limit {
		return nil, fmt.Errorf("listen on unix socket %s: the path has %d bytes, and this system allows %d; choose a shorter one",
			path, len(path), limit)
	}
	if err := removeStale(path); err != nil {
		return nil, fmt.Errorf("listen on unix socket %s: %w", path, sys.WrapError(err))
	}
	// The mode set on the unbound socket, less the umask, is the mode that Linux gives
	// the file, which therefore never exists with a wider mode. Elsewhere chmod follows.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { setMode(fd, mode) })
	}}
	listener, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on unix socket %s: %w", path, sys.WrapError(err))
	}
	if err := ensureMode(path, mode); err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("listen on unix socket %s: %w", path, sys.WrapError(err))
	}
	return listener, nil
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("the path exists and is not a socket; remove it or choose another path")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return errors.New("another server is listening there")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
