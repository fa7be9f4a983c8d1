package sandbox

import (
	"path/filepath"
	"slices"

	"execserver/internal/sandbox/launcher"
	"execserver/protocol"
)

// meet makes the rules of what both r and other let happen: what one denies is denied,
// what one says nothing of is out of reach, and only what both let be written is. What
// a policy gives to a path, it gives because of one of its rules, so the paths of all
// rules are enough. They are resolved already: two spellings of a path are one here.
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
		access := least(r.access(rule.path), other.access(rule.path)) // in what is denied, plan has the last word
		missing := r.missing[rule.path] || other.missing[rule.path]
		dir := filepath.Dir(rule.path)
		switch {
		case access == 0: // nor do rules around it grant anything
			continue
		case missing && (!both.writable(dir) || both.isFileRoot(dir)):
			continue // nobody inside can make it
		case missing:
			both.missing[rule.path] = true
		}
		both.addFound(rule.path, access, rule.pattern)
	}
	for _, link := range slices.Concat(r.links, other.links) {
		if r.shows(link) && other.shows(link) && !slices.Contains(both.links, link) {
			both.links = append(both.links, link)
		}
	}
	return both
}

// shows reports whether a link is to be seen by what the rules confine.
func (r *resolver) shows(link launcher.Link) bool {
	access := r.access(filepath.Dir(link.Path))
	return access == protocol.AccessRead || access == protocol.AccessWrite || access == 0 && slices.Contains(r.links, link)
}

// least is the access that two policies give together.
func least(a, b protocol.Access) protocol.Access {
	if a == protocol.AccessDeny || b == protocol.AccessDeny {
		return protocol.AccessDeny
	}
	return min(a, b) // 0, of what a policy does not cover, is the least
}
