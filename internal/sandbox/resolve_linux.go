package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"execserver/internal/sandbox/launcher"
	"execserver/protocol"
)

// maxMounts bounds a plan, because each mount costs the kernel a little.
const maxMounts = 40_000

// plan is a policy applied to this machine at this moment.
type plan struct {
	base     launcher.Base
	mounts   []launcher.Mount
	kernel   []launcher.Mount // hide kernelFiles; after mounts
	links    []launcher.Link
	missing  map[string]bool // mounts, by path, whose mount points must be created first
	roots    []string        // writable paths
	readable []string        // readable paths, if not everything is readable
	closed   []string        // with Landlock alone: unreadable paths within readable ones
	network  bool
	nothing  bool // the policy restricts no files
}

// resolver makes a plan from rules.
type resolver struct {
	outer    *resolver       // a policy that also applies; nil: none
	rules    []rule          // resolved, one for each path
	index    map[string]int  // indexes of the rules, by path
	regions  []string        // the real paths of writable directories
	released map[string]bool // missing names that entries make writable
	links    []launcher.Link
	missing  map[string]bool
	nested   int   // submodules and worktrees examined
	unread   error // why git's files could not be read
	mounts   *mountTable
	landlock bool     // only Landlock confines
	closed   []string // with Landlock alone: what is hidden
}

// resolve makes a plan from a policy.
func resolve(s *protocol.Sandbox, ctx Context) (_ *plan, err error) {
	p := &plan{network: s.Network}
	if p.nothing = s.FullWrite(); p.nothing {
		return p, nil
	}
	var policies []*protocol.Sandbox
	for policy := s; policy != nil; policy = policy.Within {
		if !policy.Files.FullWrite() {
			policies = append(policies, policy)
		}
	}
	var r *resolver
	for _, policy := range slices.Backward(policies) { // a client's own policy last
		one, err := resolveOne(policy, ctx, s.Network, r)
		if err != nil {
			return nil, err
		}
		if r == nil {
			r = one
		} else {
			r = one.intersect(r)
		}
	}
	if s.Network {
		r.hideSockets(ctx.Sockets)
	}
	if r.mounts, err = readMounts(); err != nil {
		return nil, err
	}
	r.restrictOtherNames()
	if r.landlock = ctx.Landlock; r.landlock {
		r.closed = r.mounts.devices()
	} else {
		r.protectKernel()
	}
	r.hideState(ctx.State)
	if err := r.protectFiles(ctx.Secrets, protocol.AccessDeny); err != nil {
		return nil, err
	}
	cwd := ""
	if !s.Cwd.IsZero() {
		cwd, _ = s.Cwd.OSPath()
	}
	r.hideDirectories(ctx.SecretDirs, cwd, ctx.Cwd)
	if err := r.protectFiles(ctx.Trusted, protocol.AccessRead); err != nil {
		return nil, err
	}
	if err := r.checkMissing(slices.Concat(ctx.Secrets, ctx.Trusted)); err != nil {
		return nil, err
	}
	p.base = launcher.BaseEmpty
	switch rootAccess(r.rules) {
	case protocol.AccessRead:
		p.base = launcher.BaseReadOnly
	case protocol.AccessWrite:
		p.base = launcher.BaseWritable
	}
	if p.links = r.links; p.base != launcher.BaseEmpty {
		p.links = r.hollowLinks()
	}
	p.missing, p.roots, p.kernel, p.closed = r.missing, r.regions, r.hiddenKernel(), r.closed
	return p, r.plan(p)
}

// resolveOne resolves the rules of one policy. outer, if not nil, also applies. Then a client may
// have written the policy to learn from an error, or from the time that it takes, what outer hides:
// such files must change neither.
func resolveOne(s *protocol.Sandbox, ctx Context, network bool, outer *resolver) (*resolver, error) {
	r := &resolver{missing: make(map[string]bool), outer: outer}
	rules, err := expand(s, ctx, r.reaches)
	if err != nil {
		return nil, err
	}
	if network {
		for _, path := range ctx.Hide {
			if _, err := os.Lstat(path); err == nil {
				rules = append(rules, rule{path: path, access: protocol.AccessDeny})
			}
		}
	}
	if err := r.resolve(rules); err != nil {
		return nil, err
	}
	return r, r.protect()
}

// resolve resolves the paths of all rules. It starts with writable paths, because a
// confined command can change links in them.
func (r *resolver) resolve(rules []rule) error {
	for _, rule := range rules {
		if rule.access != protocol.AccessWrite {
			continue
		}
		if w := r.walk(rule.path); !w.missing && !rule.moved(w) && (r.outer == nil || r.outer.writes(w.real)) {
			r.regions = append(r.regions, w.real)
		}
	}
	slices.Sort(r.regions)
	r.regions = slices.Compact(r.regions)
	for _, rule := range rules {
		w := r.walk(rule.path)
		switch {
		case w.err != nil && r.outer != nil && !r.outer.reveals(w.real):
			continue // no process inside can follow it either
		case w.err != nil:
			return w.err
		case rule.access == protocol.AccessWrite:
			keep, err := r.checkRoot(rule, w)
			if err != nil {
				return err
			}
			if !keep {
				r.release(rule, w)
				continue
			}
		case w.foreign:
			continue // the other user controls it
		case w.crossed != "" && rule.access == protocol.AccessRead && r.isProtected(rule.path):
			continue // protect keeps the link
		case w.crossed != "":
			return fmt.Errorf("cannot enforce sandbox %s path %s because it crosses writable symlink %s",
				accessName(rule.access), rule.path, w.crossed)
		case w.missing && rule.pattern:
			if _, err := os.Lstat(rule.path); errors.Is(err, fs.ErrPermission) {
				continue
			}
			return &fs.PathError{Op: "stat", Path: rule.path, Err: fs.ErrNotExist} // it was moved
		case w.missing && !r.writable(filepath.Dir(w.real)), w.missing && r.isFileRoot(filepath.Dir(w.real)):
			continue // no process inside can create it
		case w.missing:
			r.missing[w.real] = true
		}
		r.addFound(w.real, rule.access, rule.pattern)
		for _, link := range w.links {
			if !slices.Contains(r.links, link) {
				r.links = append(r.links, link)
			}
		}
	}
	return nil
}

// isProtected reports whether a path is a protected name of a writable directory.
func (r *resolver) isProtected(path string) bool {
	return slices.Contains(protected, filepath.Base(path)) && slices.Contains(r.regions, r.walk(filepath.Dir(path)).real)
}

func accessName(access protocol.Access) string {
	switch access {
	case protocol.AccessWrite:
		return "writable"
	case protocol.AccessDeny:
		return "denied"
	}
	return "read-only"
}

// checkRoot decides whether a path becomes writable. A command confined to another root
// may have created a link there.
func (r *resolver) checkRoot(rule rule, w walked) (keep bool, err error) {
	if w.missing || rule.moved(w) {
		return false, nil
	}
	if w.crossed == "" {
		return true, nil
	}
	for _, region := range r.regions {
		if region != w.real && within(w.real, region) {
			return true, nil // it would be writable there anyway
		}
	}
	r.regions = slices.DeleteFunc(r.regions, func(region string) bool { return region == w.real })
	if rule.temporary {
		return false, nil
	}
	return false, fmt.Errorf("cannot enforce sandbox writable path %s because it crosses writable symlink %s", rule.path, w.crossed)
}

// release records an entry that makes a missing name writable. A command may then create the
// name even if it is a protected one.
func (r *resolver) release(rule rule, w walked) {
	if !w.missing || w.crossed != "" || filepath.Base(w.real) != filepath.Base(rule.path) {
		return
	}
	if r.released == nil {
		r.released = make(map[string]bool)
	}
	r.released[w.real] = true
}

// moved reports whether the path of a directory for temporary files, which had no links when
// it was examined, leads to another directory by now.
func (r rule) moved(w walked) bool { return r.temporary && w.real != r.path }

func (r *resolver) add(path string, access protocol.Access) { r.addFound(path, access, false) }

func (r *resolver) addFound(path string, access protocol.Access, pattern bool) {
	if i, ok := r.index[path]; ok {
		r.rules[i].access = max(r.rules[i].access, access)
		r.rules[i].pattern = r.rules[i].pattern && pattern
		return
	}
	if r.index == nil {
		r.index = make(map[string]int)
	}
	r.index[path] = len(r.rules)
	r.rules = append(r.rules, rule{path: path, access: access, pattern: pattern})
}

func (r *resolver) has(path string) bool {
	_, ok := r.index[path]
	return ok
}

// writable reports whether a confined command may write in a directory, according to
// regions.
func (r *resolver) writable(dir string) bool {
	return slices.ContainsFunc(r.regions, func(region string) bool { return within(dir, region) })
}

// reveals reports whether a command sees a path without links, or something below it.
func (r *resolver) reveals(path string) bool {
	switch r.access(path) {
	case protocol.AccessRead, protocol.AccessWrite:
		return true
	case protocol.AccessDeny:
		return false
	}
	return containsAny(path, r.grants())
}

// writes reports whether a command may write at a path without links, or below it.
func (r *resolver) writes(path string) bool {
	return r.access(path) == protocol.AccessWrite || containsAny(path, r.regions)
}

// reaches reports whether the outer policy reveals what a path leads to.
func (r *resolver) reaches(path string) bool {
	return r.outer == nil || r.outer.reveals(r.walk(path).real)
}

// isFileRoot reports whether a path is writable and not a directory. As a mount it stays
// the same file.
func (r *resolver) isFileRoot(path string) bool {
	return slices.Contains(r.regions, path) && !isDir(path)
}

// protect adds rules for the protected names of every root, and for the repositories to which
// a .git may refer.
func (r *resolver) protect() error {
	for _, region := range r.regions {
		if !isDir(region) || slices.Contains(protected, filepath.Base(region)) {
			continue // an entry released it, so there is nothing to protect
		}
		for _, name := range protected {
			child := filepath.Join(region, name)
			if r.has(child) || r.released[child] {
				continue // an entry decides
			}
			if err := r.protectChild(child); err != nil {
				return err
			}
		}
	}
	for _, region := range r.regions {
		if err := r.protectGit(region); err != nil {
			return err
		}
	}
	return r.unread
}

// protectChild protects a name. If it is a link, protectChild protects both the link and its
// target.
func (r *resolver) protectChild(path string) error {
	w := r.walk(path)
	if w.err != nil || w.foreign {
		return w.err
	}
	r.protectLinks(w)
	switch {
	case r.has(w.real): // an entry decides
		return nil
	case r.access(w.real) != protocol.AccessWrite, w.missing && r.isFileRoot(filepath.Dir(w.real)):
		return nil
	case w.missing:
		r.missing[w.real] = true
	}
	r.add(w.real, protocol.AccessRead)
	return nil
}

// protectLinks keeps a command from replacing the links on a path.
func (r *resolver) protectLinks(w walked) {
	for _, link := range w.links {
		if r.access(filepath.Dir(link.Path)) == protocol.AccessWrite && !r.has(link.Path) {
			r.add(link.Path, protocol.AccessRead)
			r.rules[r.index[link.Path]].link = true
		}
	}
}

// access returns the access that the rules give to a path, or 0.
func (r *resolver) access(path string) protocol.Access { return r.nearest(path).access }

// nearest returns the rule for a path, or the zero value.
func (r *resolver) nearest(path string) rule {
	for {
		if i, ok := r.index[path]; ok {
			return r.rules[i]
		}
		if path == "/" {
			return rule{}
		}
		path = filepath.Dir(path)
	}
}

// plan converts the rules that change something to mounts.
func (r *resolver) plan(p *plan) error {
	rules := slices.SortedFunc(slices.Values(r.rules), func(a, b rule) int {
		if d := depth(a.path) - depth(b.path); d != 0 {
			return d
		}
		return strings.Compare(a.path, b.path)
	})
	var done resolver // the rules that have become mounts
	pinned := make(map[string]bool)
	for _, rule := range rules {
		outer := done.nearest(rule.path)
		around := outer.access
		if around == protocol.AccessDeny {
			continue // everything in a denied directory stays denied
		}
		done.addFound(rule.path, rule.access, rule.pattern)
		kind := launcher.MountWritable
		switch {
		case rule.hollow && around == 0:
			continue
		case rule.hollow:
			kind = launcher.MountHollow
		case rule.path == "/", around == rule.access && rule.access == protocol.AccessRead,
			around == 0 && rule.access == protocol.AccessDeny && !within(rule.path, "/proc") && !within(rule.path, "/dev"):
			continue
		case rule.link && rule.access != protocol.AccessDeny:
			kind = launcher.MountLink
		case rule.access == protocol.AccessRead:
			kind = launcher.MountReadOnly
		case rule.access == protocol.AccessDeny:
			kind = launcher.MountHidden
		}
		if around == protocol.AccessWrite && !rule.pattern {
			if err := p.pin(rule.path, outer.path, pinned); err != nil {
				return err
			}
		}
		m := launcher.Mount{Path: rule.path, Kind: kind, Directory: true, Optional: rule.optional}
		if !r.missing[rule.path] {
			if err := identify(&m); err != nil {
				return err
			}
		}
		if p.mounts = append(p.mounts, m); len(p.mounts) > maxMounts {
			return fmt.Errorf("the policy takes more than %d mounts", maxMounts)
		}
		if rule.access == protocol.AccessRead && !rule.link {
			p.readable = append(p.readable, rule.path)
		}
	}
	slices.SortStableFunc(p.mounts, func(a, b launcher.Mount) int { return depth(a.Path) - depth(b.Path) })
	for path := range p.missing {
		if !slices.ContainsFunc(p.mounts, func(m launcher.Mount) bool { return m.Path == path }) {
			delete(p.missing, path)
		}
	}
	return nil
}

// pin makes mounts of the directories between a path and its root. Otherwise a command
// could move such a directory with the mounts in it, and the path would be another file
// for the next command. plan does not pin the matches of patterns: there can be many, and the
// pattern follows them.
func (p *plan) pin(path, root string, pinned map[string]bool) error {
	for dir := filepath.Dir(path); dir != root && !pinned[dir]; dir = filepath.Dir(dir) {
		pinned[dir] = true
		m := launcher.Mount{Path: dir, Kind: launcher.MountWritable}
		err := identify(&m)
		if errors.Is(err, fs.ErrPermission) {
			continue // no process inside can move a directory that none can read
		}
		if err != nil {
			return err
		}
		p.mounts = append(p.mounts, m)
	}
	return nil
}

// identify records the file at the path of a mount.
func identify(m *launcher.Mount) error {
	info, err := os.Lstat(m.Path)
	if err != nil {
		return &fs.PathError{Op: "stat", Path: m.Path, Err: err}
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		m.Device, m.Inode = uint64(st.Dev), st.Ino
	}
	m.Directory = info.IsDir()
	m.Optional = m.Optional || m.Kind == launcher.MountReadOnly && isForeign(m.Path, info)
	return nil
}

// intersect returns rules that allow only what both r and other allow: a path that one of them
// denies is denied, a path that one of them does not cover is out of reach, and a path is
// writable only if it is so in both. A policy grants access to a path because of one of
// its rules, so the paths of all rules are sufficient. They are resolved already: two
// spellings of a path are one here.
func (r *resolver) intersect(other *resolver) *resolver {
	both := &resolver{missing: make(map[string]bool)}
	rules := slices.Concat(r.rules, other.rules)
	for _, rule := range rules {
		if minAccess(r.access(rule.path), other.access(rule.path)) == protocol.AccessWrite {
			both.regions = append(both.regions, rule.path)
		}
	}
	slices.Sort(both.regions)
	both.regions = slices.Compact(both.regions)
	for _, rule := range rules {
		access := minAccess(r.access(rule.path), other.access(rule.path)) // within a denied path, plan decides
		missing := r.missing[rule.path] || other.missing[rule.path]
		dir := filepath.Dir(rule.path)
		switch {
		case access == 0: // no rule around it grants anything either
			continue
		case missing && (!both.writable(dir) || both.isFileRoot(dir)):
			continue // no process inside can create it
		case missing:
			both.missing[rule.path] = true
		}
		both.addFound(rule.path, access, rule.pattern)
		if rule.link {
			both.rules[both.index[rule.path]].link = true
		}
	}
	for _, link := range slices.Concat(r.links, other.links) {
		if r.shows(link) && other.shows(link) && !slices.Contains(both.links, link) {
			both.links = append(both.links, link)
		}
	}
	return both
}

// shows reports whether the rules make a link visible.
func (r *resolver) shows(link launcher.Link) bool {
	access := r.access(filepath.Dir(link.Path))
	return access == protocol.AccessRead || access == protocol.AccessWrite || access == 0 && slices.Contains(r.links, link)
}

// minAccess returns the access that two policies together give.
func minAccess(a, b protocol.Access) protocol.Access {
	if a == protocol.AccessDeny || b == protocol.AccessDeny {
		return protocol.AccessDeny
	}
	return min(a, b) // 0, for a path that a policy does not cover, is the least
}
