package sandbox

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"execserver/protocol"
)

// temporaryRule returns the rule for the directory that TMPDIR names. An environment
// variable must not grant more than a directory for temporary files, so any other
// directory adds no rule, unless the rule denies it.
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

// slashTmpRule returns the rule for /tmp. /tmp may be a link; only root could change it.
func slashTmpRule(access protocol.Access) []rule {
	real, err := filepath.EvalSymlinks("/tmp")
	if err != nil {
		return nil
	}
	return temporaryRule(real, access)
}

// isTemporary reports whether a path without links is a directory for temporary files:
// one that everybody shares, or one of this user's own that holds nothing of the system
// and nothing else of the user.
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

// holdsMore reports whether a directory of this user is part of the system, as most are
// for root, or contains a part of it or the user's home.
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
