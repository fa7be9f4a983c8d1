package sandbox

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"execserver/protocol"
)

// temporaryRule is the rule for the directory that TMPDIR names. A variable of
// the environment must not make more of it than a directory for temporary files,
// so anything else adds nothing, unless it is to be denied.
func temporaryRule(dir string, access protocol.Access) []rule {
	if !filepath.IsAbs(dir) {
		return nil
	}
	if len(dir) > 1 {
		dir = strings.TrimRight(dir, "/")
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil || real != dir && access != protocol.AccessDeny {
		return nil
	}
	if access != protocol.AccessDeny && !isTemporary(real) {
		return nil
	}
	return []rule{{path: real, access: access, temporary: true}}
}

// slashTmpRule is the rule for /tmp, which may be a link on this machine: who
// could change that owns the machine.
func slashTmpRule(access protocol.Access) []rule {
	real, err := filepath.EvalSymlinks("/tmp")
	if err != nil {
		return nil
	}
	return temporaryRule(real, access)
}

// isTemporary reports whether a path without links is a directory for temporary
// files: one that everybody shares, or one of this user's own that holds nothing
// of the system or of the user besides.
func isTemporary(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return false
	}
	if info.Mode()&fs.ModeSticky != 0 && info.Mode().Perm()&0o002 != 0 {
		return true
	}
	return isOwn(info) && !holdsMore(dir)
}

// holdsMore reports whether a directory of this user is part of the system, as
// most are for the superuser, or holds a part of it, or the user's home.
func holdsMore(dir string) bool {
	real := func(path string) string {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return real
		}
		return path
	}
	for _, part := range slices.Concat(minimal, []string{"/boot", "/dev", "/proc", "/sys"}) {
		if part = real(part); within(dir, part) || within(part, dir) {
			return true
		}
	}
	around := []string{"/run/user", "/var/lib", "/root"}
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		around = append(around, home)
	}
	return slices.ContainsFunc(around, func(path string) bool { return within(real(path), dir) })
}
