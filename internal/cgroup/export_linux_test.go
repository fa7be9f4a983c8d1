package cgroup

// Path returns the group's directory.
func (g *Group) Path() string { return g.path }
