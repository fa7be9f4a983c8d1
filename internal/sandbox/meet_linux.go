package sandbox

import (
	"path/filepath"
	"slices"

	"execserver/internal/sandbox/launcher"
	"execserver/protocol"
)

// meet returns rules that allow only what both r and other allow: a path that one of them
// denies is denied, a path that one of them does not cover is out of reach, and a path is
// writable only if it is so in both. A policy grants access to a path because of one of
// its rules, so the paths of all rules are sufficient. They are resolved already: two
// spellings of a path are one here.
func (r *resolver) meet(other *resolver) *resolver {
	both := &resolver{missing: make(map[string]bool)}
	rules := slices.Concat(r.rules, other.rules)
	for _, rule := range rules {
		if least(r.access(rule.path), other.access(rule.path)) == protocol.AccessWrite {
			both.regions = append(both.regions, rule.path)
		}
	}
	slices.Sort(both.regions)
	both.regions = slices.Compact(both.regions)
	for _, rule := range rules {
		access := least(r.access(rule.path), other.access(rule.path)) // within a denied path, plan decides
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

// least returns the access that two policies together give.
func least(a, b protocol.Access) protocol.Access {
	if a == protocol.AccessDeny || b == protocol.AccessDeny {
		return protocol.AccessDeny
	}
	return min(a, b) // 0, for a path that a policy does not cover, is the least
}
