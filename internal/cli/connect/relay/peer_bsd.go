//go:build unix && !linux

package relay

import (
	"errors"
	"net"
)

// peerOf is for Linux.
func peerOf(*net.UnixConn) (int, error) {
	return 0, errors.New("this system does not say which process it is; end it by hand")
}

func inheritNothing() error { return nil } // the shells that start this program pass none
