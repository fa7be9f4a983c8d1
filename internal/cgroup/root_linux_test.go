package cgroup_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"execserver/internal/cgroup"
)

// TestRoot checks that the root of the hierarchy has its previous controllers again after
// the last server has ended.
func TestRoot(t *testing.T) {
	probe := claimed(t)
	root := filepath.Dir(probe.Path())
	probe.Remove()
	if _, err := os.Stat(filepath.Join(root, "cgroup.type")); err == nil {
		t.Skip("this program is not in the root of the hierarchy")
	}
	read := func(name string) []string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(text))
	}
	before := read("cgroup.subtree_control")
	missing := slices.DeleteFunc(read("cgroup.controllers"), func(name string) bool { return slices.Contains(before, name) })
	if len(missing) == 0 {
		t.Skip("the root has all controllers enabled already")
	}
	first, second := claimed(t, missing...), claimed(t, missing...)
	if got := second.Controllers(); !slices.Equal(got, missing) {
		t.Fatalf("Controllers: %v, want %v", got, missing)
	}
	first.Remove() // as its supervisor may have done already
	first.Remove()
	if got := second.Controllers(); !slices.Equal(got, missing) {
		t.Errorf("Controllers after another server has ended: %v, want %v", got, missing)
	}
	second.Remove()
	if others, _ := filepath.Glob(filepath.Join(root, "*", "cgroup.procs")); len(others) > 0 {
		t.Skipf("others have control groups here: %v", others)
	}
	if now := read("cgroup.subtree_control"); !slices.Equal(now, before) {
		t.Errorf("enabled in the root: %v, before: %v", now, before)
	}
}

// claimed claims a directory until the end of the test at the latest.
func claimed(t *testing.T, controllers ...string) *cgroup.Claimed {
	t.Helper()
	c, err := cgroup.Claim(controllers)
	if err != nil {
		t.Skipf("no control groups here: %v", err)
	}
	t.Cleanup(c.Remove)
	return c
}
