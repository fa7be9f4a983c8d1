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

// TestPatterns checks the files that patterns find. Paths are relative to the directory
// of the test.
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
		strings.Repeat("{a,b}", 8) + strings.Repeat("{a}", 1000) + ".env": "error longer than 1048576 bytes",
		dir + "/{sub,none}/*.env":                     "sub/c.env",
		"{" + dir + "/sub," + dir + "/none}/c.env":    "sub/c.env",
		projectScheme + "*.env":                       "sub/c.env",
		projectScheme + "{c.env,deep/[!\\-]e\\}.key}": "sub/c.env sub/deep/{e}.key",
	} {
		s := newSearch()
		err := s.expandPattern(pattern, dir, []string{filepath.Join(dir, "sub")}, nil, nil)
		found, pathsErr := s.paths()
		if pathsErr != nil {
			t.Error(pathsErr)
		}
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

// TestManyMatches matches more files than the server hides one by one: some in
// directories that it hides instead, some in a directory that must stay.
func TestManyMatches(t *testing.T) {
	for _, tt := range []struct {
		found map[string]int // files, by directory
		want  string         // directories, and the numbers of files
	}{
		{map[string]int{"/ws/a": 10}, "10 files"},
		{map[string]int{"/ws": 15_000, "/ws/a": maxDirMasks + 1, "/ws/b": 3}, "/ws/a 15003 files"},
		{map[string]int{"/ws": 19_900, "/ws/a": 500, "/ws/b": 90}, "/ws/a 19990 files"},
		{map[string]int{"/": 1, "/ws": 30_000}, "error most of them in /ws,"},
	} {
		s := newSearch("/ws")
		for dir, n := range tt.found {
			for i := range n {
				s.add(filepath.Join(dir, fmt.Sprint(i, ".env")), nil)
			}
		}
		list, err := s.paths()
		got, files := "", 0
		for _, path := range list {
			if strings.HasSuffix(path, ".env") {
				files++
			} else {
				got += path + " "
			}
		}
		got += fmt.Sprint(files, " files")
		if reason, ok := strings.CutPrefix(tt.want, "error "); ok {
			if err == nil || !strings.Contains(err.Error(), reason) {
				t.Errorf("%v: %v", tt.found, err)
			}
		} else if err != nil || got != tt.want {
			t.Errorf("%v: %s, %v, want %s", tt.found, got, err, tt.want)
		}
	}
}

// TestLateSearch searches with no time left.
func TestLateSearch(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a/x.env", "b/y.env", "z.env"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := newSearch(dir)
	s.deadline = s.deadline.Add(-2 * patternTimeout)
	if err := s.expandPattern("**/*.env", filepath.Join(dir, "a"), nil, nil, nil); err != nil {
		t.Error(err)
	}
	if list, err := s.paths(); err != nil || !slices.Equal(list, []string{filepath.Join(dir, "a")}) {
		t.Errorf("%q, %v", list, err)
	}
	if err := s.expandPattern("**/*.env", dir, nil, nil, nil); err == nil || !strings.Contains(err.Error(), "glob_scan_max_depth") {
		t.Errorf("a root: %v", err)
	}
}
