package relay

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// machineFacts returns what distinguishes this machine, container or root directory from others that
// may share its files.
func machineFacts() []string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without /proc, the root must do
	facts := []string{strings.TrimSpace(string(boot)), rootIdentity()}
	for _, name := range []string{"pid", "mnt", "user"} {
		namespace, _ := os.Readlink("/proc/self/ns/" + name)
		facts = append(facts, namespace)
	}
	return facts
}

// longPath is the size from which on the path of a socket may be too long for the system.
const longPath = 100

// SocketPath returns a path for the socket in a directory of a server. It is short, and valid while
// the directory is open.
func SocketPath(dir *os.File) string {
	path := filepath.Join(dir.Name(), "socket")
	if len(path) > longPath {
		path = fmt.Sprintf("/proc/self/fd/%d/socket", dir.Fd())
	}
	return path
}
