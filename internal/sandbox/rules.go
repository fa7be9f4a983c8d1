package sandbox

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"execserver/protocol"
)

// Context is what a policy refers to.
type Context struct {
	Cwd    string   // for policies that have none of their own; "": there is none
	TmpDir string   // the value of TMPDIR
	Hide   []string // sockets and the like that are out of reach where there is a network

	Sockets    []string // what is within reach where there is a network, as Options has them
	SecretDirs []string // directories of nothing but Secrets and Trusted

	Secrets []string // what nothing confined reads or writes
	Trusted []string // what nothing confined writes
	State   string   // the directory of the server's notes, which is hidden; "": none

	// MakeIn are the directories in which what is missing may be made for mounts to sit
	// on; nil: anywhere. The protected names are also made in a directory where everybody
	// can make names, as in /tmp.
	MakeIn []string
}

// rule is what an entry of a policy comes down to: access to a path and
// everything below it.
type rule struct {
	path      string // clean; of links no more than was resolved
	access    protocol.Access
	temporary bool // it stands for a directory for temporary files
	pattern   bool // a pattern has found it
	hollow    bool // a directory of which nothing is there but what other rules say
	optional  bool // it may be gone
}

// protected are the names that cannot be written in any root, unless an entry
// says so: what they hold is executed, or decides what an agent does.
var protected = []string{".git", ".agents", ".codex", ".aws"}

// minimal is what programs need to run.
var minimal = []string{
	"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/nix/store", "/run/current-system/sw",
}

// expand makes rules of the entries of a policy.
func expand(s *protocol.Sandbox, ctx Context) ([]rule, error) {
	cwd := ctx.Cwd
	if !s.Cwd.IsZero() {
		cwd, _ = s.Cwd.Native() // DecodeSandbox has checked it
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
			path, err := e.Path.Native()
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

// writtenPaths are what entries with a path let be written.
func writtenPaths(s *protocol.Sandbox) (paths []string) {
	for _, e := range s.Files.Entries {
		if e.Access != protocol.AccessWrite || e.Path.IsZero() {
			continue
		}
		if path, err := e.Path.Native(); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// workspaceRoots are what project_roots stands for.
func workspaceRoots(s *protocol.Sandbox, cwd string) ([]string, error) {
	if s.WorkspaceRoots == nil {
		if cwd == "" {
			return nil, fmt.Errorf("file system sandbox context with dynamic permissions requires cwd")
		}
		return []string{cwd}, nil
	}
	roots := make([]string, len(s.WorkspaceRoots))
	for i, root := range s.WorkspaceRoots {
		path, err := root.Native()
		if err != nil {
			return nil, err
		}
		roots[i] = path
	}
	return roots, nil
}

// rootAccess is the access to the root directory; 0: none.
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

// depth orders paths such that parents come before what is in them.
func depth(path string) int {
	if path == "/" {
		return 0
	}
	return strings.Count(path, "/")
}
