//go:build unix && !linux

package relay

import (
	"os"
	"path/filepath"
)

// machineFacts returns what distinguishes this machine from others that may share its files.
func machineFacts() []string {
	name, _ := os.Hostname()
	return []string{name, rootIdentity()}
}

// SocketPath returns the path of the socket in a directory of a server.
func SocketPath(dir *os.File) string { return filepath.Join(dir.Name(), "socket") }
