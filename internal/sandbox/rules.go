package sandbox

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"execserver/protocol"
)

// Context holds what a policy refers to beyond its own text.
type Context struct {
	Cwd    string   // for policies without one of their own; "" if there is none
	TmpDir string   // the value of TMPDIR
	Hide   []string // sockets and similar files that are out of reach even with a network

	Sockets    []string // what is within reach with a network, as in Options
	SecretDirs []string // directories that hold only Secrets and Trusted

	Secrets []string // files that no confined command reads or writes
	Trusted []string // files that no confined command writes
	State   []string // directories of the programs' state and configuration, which are hidden

	Landlock bool // Landlock alone confines files: it hides nothing and makes nothing writable

	// MakeIn are the directories in which the server may create missing mount points; nil
	// means anywhere. It also creates protected names in a directory in which everybody
	// can create names, such as /tmp.
	MakeIn []string
}

// rule is the meaning of an entry of a policy: the access to a path and everything below
// it.
type rule struct {
	path      string // clean, with links resolved as far as possible
	access    protocol.Access
	temporary bool // it stands for a directory for temporary files
	pattern   bool // found by a pattern
	hollow    bool // a directory that holds only what other rules name
	optional  bool // it may disappear
	link      bool // a link that must stay what it is
}

// protected are the names that cannot be written in any root unless an entry says so:
// programs execute their content, or it directs an agent.
var protected = []string{".git", ".agents", ".codex", ".aws"}

// minimal are the paths that programs need to run.
var minimal = []string{
	"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/nix/store", "/run/current-system/sw",
}

// expand makes rules from the entries of a policy.
func expand(s *protocol.Sandbox, ctx Context) ([]rule, error) {
	cwd := ctx.Cwd
	if !s.Cwd.IsZero() {
		cwd, _ = s.Cwd.OSPath() // DecodeSandbox has checked it
	}
	roots, rootsErr := workspaceRoots(s, cwd)
	patterns := newSearch(append(writtenPaths(s), slices.Concat(roots, []string{cwd, ctx.Cwd})...)...)
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
