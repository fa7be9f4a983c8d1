package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// isRoot reports whether a group is the root of the hierarchy. The root has no type, and
// may have processes beside groups with controllers.
func isRoot(path string) bool {
	_, err := sys.Stat(filepath.Join(path, "cgroup.type"))
	return errors.Is(err, os.ErrNotExist)
}

// enabledAttribute of the root lists the controllers that servers have enabled in it. It
// outlives a killed server; the next server to end disables them.
const enabledAttribute = "user.exec-server.controllers"

// noteEnabled adds controllers to the list.
func noteEnabled(root string, names []string) {
	list := append(enabledByServers(root), names...)
	slices.Sort(list)
	_ = unix.Setxattr(root, enabledAttribute, []byte(strings.Join(slices.Compact(list), " ")), 0) // without it they stay enabled
}

func enabledByServers(root string) []string {
	var value [512]byte
	n, err := sys.Getxattr(root, enabledAttribute, value[:])
	if err != nil {
		return nil
	}
	return strings.Fields(string(value[:n]))
}

// restoreRoot disables the controllers that servers have enabled in the root. The last
// server does so, unless a stranger has a group there, whose limits may depend on the
// controllers by now.
func restoreRoot(base string) {
	if !isRoot(base) {
		return
	}
	names := enabledByServers(base)
	below, err := groupsBelow(base)
	if len(names) == 0 || err != nil || len(below) > 0 {
		return
	}
	for _, name := range names {
		_ = sys.WriteFile(filepath.Join(base, "cgroup.subtree_control"), []byte("-"+name), 0)
	}
	_ = unix.Removexattr(base, enabledAttribute)
}
