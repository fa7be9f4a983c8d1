//go:build !unix

package relay

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
)

func open(context.Context, string, *Options) (*net.UnixConn, error) {
	return nil, errors.New("connect starts no server on this system")
}

// SocketPath returns the path of the socket in a directory of a server.
func SocketPath(dir *os.File) string { return filepath.Join(dir.Name(), "socket") }
