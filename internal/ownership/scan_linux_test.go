package ownership

import (
	"os"
	"os/exec"
	"testing"

	"execserver/internal/cgroup"
	"execserver/internal/procfs"
)

// beyond is added to pids; the kernel never assigns the results.
const beyond = 1 << 22

// TestWhose checks the decision about processes 100 and more, as they were read. The leader of
// a tree, 100, was forked at 40, and the scan has begun at 80.
func TestWhose(t *testing.T) {
	t.Parallel()
	self := os.Getpid() - beyond
	type process struct {
		pid, parent, session int
		start                uint64
	}
	leader, member := process{100, self, 100, 40}, process{101, 100, 100, 45}
	for name, test := range map[string]struct {
		reaped  uint64
		adopted int
		groups  bool
		seen    []process
		owned   bool
		kin     relation
	}{
		"the leader":                     {seen: []process{leader}, owned: true},
		"in the session of the leader":   {seen: []process{{102, 99, 100, 50}}, owned: true},
		"that, after it was reaped":      {reaped: 60, seen: []process{{102, 99, 100, 60}}, owned: true},
		"child of a member":              {seen: []process{{102, 101, 102, 50}, member}, owned: true},
		"grandchild of a member":         {seen: []process{{103, 102, 103, 60}, {102, 101, 102, 50}, member}, owned: true},
		"child that a member adopted":    {seen: []process{{102, 101, 102, 45}, member}, owned: true},
		"had the leader's number before": {seen: []process{{100, 99, 100, 30}}},
		"its child": {
			seen: []process{{102, 100, 102, 35}, {100, 99, 100, 30}},
		},
		"has the session's number now": {reaped: 60, seen: []process{{102, 99, 100, 61}}},
		"a member has its parent's number": {
			seen: []process{{102, 101, 102, 50}, {101, 100, 100, 55}},
		},
		"its parent has a member's number": {
			// 101 was read, and then another had its number, which is gone by now, too.
			seen: []process{{102, 101, 102, 81}, member},
		},
		"parents in a circle": {seen: []process{{102, 103, 102, 50}, {103, 102, 103, 50}}},
		"another's":           {seen: []process{{102, 1, 102, 50}, {1, 0, 1, 0}}},

		"child of the program":            {seen: []process{{102, self, 102, 50}}, kin: descendant},
		"adopted child":                   {adopted: 102, seen: []process{{102, self, 102, 50}}, kin: unowned},
		"its child, too":                  {adopted: 102, seen: []process{{103, 102, 103, 50}, {102, self, 102, 50}}, kin: unowned},
		"adopted child of a group":        {adopted: 102, groups: true, seen: []process{{102, self, 102, 50}}, kin: descendant},
		"adopted leader, by CLONE_PARENT": {adopted: 102, seen: []process{{102, self, 100, 50}}, owned: true},
	} {
		t.Run(name, func(t *testing.T) {
			o, tree := ownedLeader(t)
			if test.groups {
				o.cgroups = &cgroup.Claimed{}
			}
			tree.leader, tree.forked, tree.reaped = 100+beyond, 40, test.reaped
			o.leaders[tree.leader] = tree
			s := newScan(o)
			s.begun, s.adopted = 80, map[int]bool{test.adopted + beyond: true}
			for _, p := range test.seen {
				st := procfs.Stat{Pid: p.pid + beyond, Parent: p.parent + beyond, Session: p.session + beyond, Start: p.start}
				s.stats[st.Pid] = st
			}
			of := s.attribute(s.stats[test.seen[0].pid+beyond])
			want := attribution{relation: test.kin}
			if test.owned {
				want = attribution{tree.owner, tree, descendant}
			}
			if of != want {
				t.Errorf("decided %+v, want %+v", of, want)
			}
		})
	}
}

// TestWhoseParentIsHidden: between a process and its leader is a process of another user,
// which /proc may hide. The tag identifies the tree.
func TestWhoseParentIsHidden(t *testing.T) {
	t.Parallel()
	if err := checkTags(); err != nil {
		t.Skip(err)
	}
	o, tree := ownedLeader(t)
	o.programID = newProgramID()
	tree.tag = o.newTag(tree)
	child := exec.Command("sleep", "1000")
	var err error
	if tree.Fork(func() { err = child.Start() }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	of := newScan(o).attribute(procfs.Stat{Pid: child.Process.Pid, Parent: beyond, Start: now()})
	if want := (attribution{tree.owner, tree, descendant}); of != want {
		t.Errorf("decided %+v, want %+v", of, want)
	}
}

// ownedLeader returns a tree of an ownership that finds what this program does not start.
func ownedLeader(t *testing.T) (*Ownership, *Tree) {
	t.Helper()
	o, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := o.NewOwner().NewTree(nil, TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return o, tree
}
