package sandbox

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"execserver/protocol"
)

// Context holds what a policy refers to beyond its own text.
type Context struct {
	Cwd    string   // for policies without one of their own; "" if there is none
	TmpDir string   // the value of TMPDIR
	Hide   []string // sockets and similar files that are hidden even with a network

	Sockets    []string // as in Options
	SecretDirs []string // directories that hold only Secrets and Trusted

	Secrets []string // files that no confined command reads or writes
	Trusted []string // files that no confined command writes
	State   []string // hidden directories with state and configuration of this program

	Landlock bool // only Landlock confines files: it cannot hide files or grant write access

	// MakeIn are the directories in which the server may create missing mount points; nil
	// means anywhere. It also creates protected names in world-writable directories such as
	// /tmp.
	MakeIn []string
}

// rule is the meaning of an entry of a policy: the access to a path and everything below
// it.
type rule struct {
	path      string // clean, with links resolved as far as possible
	access    protocol.Access
	temporary bool // it stands for a directory for temporary files
	pattern   bool // found by a pattern
	hollow    bool // a directory that shows only files with rules of their own
	optional  bool // it may disappear
	link      bool // a protected link
}

// protected are the names that cannot be written in any root unless an entry grants it:
// programs execute their content, or it directs an agent.
var protected = []string{".git", ".agents", ".codex", ".aws"}

// minimal are the paths that programs need to run.
var minimal = []string{
	"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/nix/store", "/run/current-system/sw",
}

// expand makes rules from the entries of a policy. It searches for files that match patterns only
// in directories that reaches accepts.
func expand(s *protocol.Sandbox, ctx Context, reaches func(dir string) bool) ([]rule, error) {
	cwd := ctx.Cwd
	if !s.Cwd.IsZero() {
		cwd, _ = s.Cwd.OSPath() // DecodeSandbox has checked it
	}
	roots, rootsErr := workspaceRoots(s, cwd)
	patterns := newSearch(append(writtenPaths(s), slices.Concat(roots, []string{cwd, ctx.Cwd})...)...)
	patterns.reaches = reaches
	var rules []rule
	for _, e := range s.Files.Entries {
		add := func(paths ...string) {
			for _, path := range paths {
				rules = append(rules, rule{path: filepath.Clean(path), access: e.Access})
			}
		}
		switch {
		case e.Pattern != "":
			if e.Access != protocol.AccessDeny {
				continue // patterns only ever deny
			}
			if err := patterns.expandPattern(e.Pattern, cwd, roots, rootsErr, s.Files.GlobDepth); err != nil {
				return nil, err
			}
		case !e.Path.IsZero():
			path, err := e.Path.OSPath()
			if err != nil {
				return nil, err
			}
			add(path)
		case e.Special == protocol.SpecialRoot:
			add("/")
		case e.Special == protocol.SpecialMinimal:
			add(minimal...)
		case e.Special == protocol.SpecialSlashTmp:
			rules = append(rules, slashTmpRule(e.Access)...)
		case e.Special == protocol.SpecialTmpdir:
			rules = append(rules, temporaryRule(ctx.TmpDir, e.Access)...)
		case e.Special == protocol.SpecialProjectRoots:
			if rootsErr != nil {
				return nil, rootsErr
			}
			if e.Subpath != "" && !filepath.IsLocal(e.Subpath) {
				if e.Access == protocol.AccessDeny {
					return nil, fmt.Errorf("cannot enforce sandbox denied path %q because it leads out of the workspace", e.Subpath)
				}
				continue
			}
			for _, root := range roots {
				add(filepath.Join(root, e.Subpath))
			}
		}
	}
	found, err := patterns.paths()
	if err != nil {
		return nil, err
	}
	for _, path := range found {
		rules = append(rules, rule{path: path, access: protocol.AccessDeny, pattern: true})
	}
	return rules, nil
}

// writtenPaths returns the paths that the entries of a policy make writable.
func writtenPaths(s *protocol.Sandbox) (paths []string) {
	for _, e := range s.Files.Entries {
		if e.Access != protocol.AccessWrite || e.Path.IsZero() {
			continue
		}
		if path, err := e.Path.OSPath(); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// workspaceRoots returns the meaning of project_roots.
func workspaceRoots(s *protocol.Sandbox, cwd string) ([]string, error) {
	if s.WorkspaceRoots == nil {
		if cwd == "" {
			return nil, fmt.Errorf("file system sandbox context with dynamic permissions requires cwd")
		}
		return []string{cwd}, nil
	}
	roots := make([]string, len(s.WorkspaceRoots))
	for i, root := range s.WorkspaceRoots {
		path, err := root.OSPath()
		if err != nil {
			return nil, err
		}
		roots[i] = path
	}
	return roots, nil
}

// rootAccess returns the access to the root directory, or 0.
func rootAccess(rules []rule) (access protocol.Access) {
	for _, r := range rules {
		if r.path == "/" {
			access = max(access, r.access)
		}
	}
	if access == protocol.AccessDeny {
		return 0
	}
	return access
}

// within reports whether a clean path is a directory or something in it.
func within(path, dir string) bool {
	return dir == "/" || path == dir || strings.HasPrefix(path, dir) && path[len(dir)] == '/'
}

// depth orders paths so that parents come before their content.
func depth(path string) int {
	if path == "/" {
		return 0
	}
	return strings.Count(path, "/")
}

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
// a shared one, or one of this user that contains neither parts of the system nor the user's
// home.
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
