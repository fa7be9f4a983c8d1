package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPatterns has what patterns find, with the paths below the test's directory.
func TestPatterns(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.env", "b.key", "sub/c.env", "sub/d.key", "sub/]", "sub/deep/-.key", "sub/deep/{e}.key", "sub/deep/é.key", "sub/deep/\xff.key"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"alias": "sub", "link.env": "b.key"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for pattern, want := range map[string]string{
		"*.env":                               "a.env",
		"**/*.env":                            "a.env sub/c.env",
		"**/*.{env,key}":                      "a.env b.key sub/c.env sub/d.key sub/deep/-.key sub/deep/{e}.key sub/deep/é.key sub/deep/\xff.key",
		"{a,sub/{c,x}}.env":                   "a.env sub/c.env",
		"**/[!a].env":                         "sub/c.env",
		"**/[^a].env":                         "sub/c.env",
		"**/[a-c].env":                        "a.env sub/c.env",
		"sub/[]]":                             "sub/]",
		"**/[-_].key":                         "sub/deep/-.key",
		"**/[_-].key":                         "sub/deep/-.key",
		"**/\\{e\\}.key":                      "sub/deep/{e}.key",
		"**/[{]e}.key":                        "sub/deep/{e}.key",
		"**/?.key":                            "b.key sub/d.key sub/deep/-.key sub/deep/é.key sub/deep/\xff.key",
		"sub/deep/[!-éb]*":                    "sub/deep/{e}.key sub/deep/\xff.key",
		"a[.env":                              "",
		"alias/*.env":                         "alias/c.env",
		"**/alias/*.env":                      "",
		"none/*.env":                          "",
		"a.env/*":                             "",
		"sub/../a.env":                        "error leads upwards",
		"**/{env,key":                         "error not closed",
		"[z-a]":                               "error understood",
		strings.Repeat("{a,b}", 100) + ".env": "error more than 256 patterns",
		strings.Repeat("{", 1000) + ".env":    "error not closed",
		dir + "/{sub,none}/*.env":             "sub/c.env",
		"{" + dir + "/sub," + dir + "/none}/c.env":    "sub/c.env",
		projectScheme + "*.env":                       "sub/c.env",
		projectScheme + "{c.env,deep/[!\\-]e\\}.key}": "sub/c.env sub/deep/{e}.key",
	} {
		found, err := newSearch().expandPattern(pattern, dir, []string{filepath.Join(dir, "sub")}, nil, nil)
		var got []string
		for _, path := range found {
			got = append(got, strings.TrimPrefix(path, dir+"/"))
		}
		slices.Sort(got)
		text := strings.Join(got, " ")
		if err != nil {
			text = "error " + err.Error()
		}
		if reason, ok := strings.CutPrefix(want, "error "); ok && strings.Contains(text, reason) && err != nil {
			continue
		}
		if diff := cmp.Diff(want, text); diff != "" {
			t.Errorf("%s: %s", pattern, diff)
		}
	}
}

// TestPatternsShareBounds has many patterns, each of which finds much.
func TestPatternsShareBounds(t *testing.T) {
	dir := t.TempDir()
	for i := range 100 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s, tries := newSearch(), 0
	for ; tries <= maxMatches/100; tries++ {
		if _, err := s.expandPattern("*", dir, nil, nil, nil); err != nil {
			break
		}
	}
	if tries != maxMatches/100 {
		t.Errorf("%d patterns have found 100 files each", tries)
	}
}
