package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"execserver/internal/errno"
)

// ListenUnix listens on a unix socket with mode 0600. A socket that a dead
// server left behind is replaced; a live one is refused, and so is anything at
// path that is not a socket.
func ListenUnix(path string) (net.Listener, error) { return listenUnix(path, 0o600) }

// ListenUnixForAll is ListenUnix for a server that asks the system who connects:
// everybody can, who gets to the socket. Nobody else must be able to replace it, as
// the clients are of other users and cannot tell by its owner whose it should be.
func ListenUnixForAll(path string) (net.Listener, error) {
	if err := checkDirectory(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("listen on unix socket %s: %w", path, errno.Wrap(err))
	}
	return listenUnix(path, 0o666)
}

func listenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	if limit := len(syscall.RawSockaddrUnix{}.Path) - 1; len(path) > limit {
		return nil, fmt.Errorf("listen on unix socket %s: the path has %d bytes, and this system allows %d; choose a shorter one",
			path, len(path), limit)
	}
	if err := removeStale(path); err != nil {
		return nil, fmt.Errorf("listen on unix socket %s: %w", path, errno.Wrap(err))
	}
	// The mode set on the unbound socket, less the umask, is the one that Linux gives
	// the file, which therefore never exists with a wider mode; elsewhere chmod follows.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { setMode(fd, mode) })
	}}
	listener, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on unix socket %s: %w", path, errno.Wrap(err))
	}
	if err := ensureMode(path, mode); err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("listen on unix socket %s: %w", path, errno.Wrap(err))
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

// NewUnix makes the Conn of an accepted connection: lines, as on stdio.
func NewUnix(conn net.Conn, limit int64) *Lines {
	return NewLines(messageFrom+"unix socket", unixReader{conn}, conn, conn.Close, limit)
}

// unixReader reads from a unix socket. When the peer closes it and has not read
// everything, the system says "connection reset" instead of the end of the stream,
// after all that the peer has written.
type unixReader struct{ conn net.Conn }

func (r unixReader) Read(b []byte) (int, error) {
	n, err := r.conn.Read(b)
	if errors.Is(err, syscall.ECONNRESET) {
		err = io.EOF
	}
	return n, err
}

// NewStdio makes the Conn of a server that a client started as its child. Close
// closes both files. It cannot unblock a Read or Write of a file in blocking
// mode, as standard input and output are when they were opened that way: whoever
// closes those must not wait for the reader, and does best to end the program.
func NewStdio(in, out *os.File, limit int64) *Lines {
	stop := func() error { return errors.Join(in.Close(), out.Close()) }
	return NewLines(messageFrom+"stdio", in, out, stop, limit)
}
