package filesystem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"execserver/internal/filesystem"
	"execserver/internal/testkit"
)

var walkAll = filesystem.WalkOptions{MaxDepth: 64, MaxDirectories: 10_000, MaxEntries: 50_000}

// walk returns the names found below root: directories with a slash, unreadable ones with
// a question mark, and "..." if something was left out.
func walk(t *testing.T, root string, options filesystem.WalkOptions) string {
	t.Helper()
	r, err := filesystem.Walk(context.Background(), root, options)
	ok(t, "walk", err)
	var names []string
	for _, e := range r.Entries {
		name, _ := filepath.Rel(root, e.Path)
		if name = filepath.ToSlash(name); e.IsDirectory {
			name += "/"
		}
		names = append(names, name)
	}
	for _, e := range r.Errors {
		name, _ := filepath.Rel(root, e.Path)
		names = append(names, filepath.ToSlash(name)+"?")
	}
	if r.Truncated {
		names = append(names, "...")
	}
	return strings.Join(names, " ")
}

// TestWalkTable compares with the results of the released server, option by option.
func TestWalkTable(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	for _, name := range []string{".f", ".h/x/-", ".h/y", "a/1", "a/b/2", "a/b/c/3", "m", "z/q"} {
		if d, dir := strings.CutSuffix(name, "/-"); dir {
			mkdir(t, at("t/"+d))
		} else {
			put(t, at("t/"+name), "")
		}
	}
	symlink(t, "a", at("t/la"))
	symlink(t, "m", at("t/lm"))
	symlink(t, "nope", at("t/dang"))
	symlink(t, "..", at("t/a/up"))
	symlink(t, filepath.Join("..", "z"), at("t/a/lz"))
	symlink(t, "t", at("lt"))
	put(t, at("h/d/f"), "")
	put(t, at("h/.e/g"), "")
	symlink(t, "d", at("h/.l"))
	symlink(t, ".e", at("h/v"))
	put(t, at("o2/a/x"), "")
	put(t, at("o2/b/y"), "")
	mkdir(t, at("e/x"))

	const (
		top   = ".f .h/ a/ m z/"
		two   = top + " .h/x/ .h/y a/1 a/b/ z/q"
		three = two + " a/b/2 a/b/c/"
		all   = three + " a/b/c/3"
		links = ".f .h/ a/ la/ m z/ .h/x/ .h/y a/1 a/b/ a/lz/ a/up/ z/q a/b/2 a/b/c/ a/b/c/3"
	)
	for _, tt := range []struct {
		root           string
		depth, ds, es  int // 0: depth 0 or no limit
		follow, pruned bool
		want           string
	}{
		{root: "t", depth: 6, want: all},
		{root: "t", depth: 6, follow: true, want: links},
		{root: "t", depth: 6, pruned: true, want: ".f .h/ a/ m z/ a/1 a/b/ z/q a/b/2 a/b/c/ a/b/c/3"},
		{root: "t/.h", depth: 6, pruned: true, want: "x/ y"},
		{root: "t", depth: 0, want: top},
		{root: "t", depth: 1, want: two},
		{root: "t", depth: 2, want: three},
		{root: "t", depth: 3, want: all},
		{root: "t", depth: 1, follow: true, want: ".f .h/ a/ la/ m z/ .h/x/ .h/y a/1 a/b/ a/lz/ a/up/ z/q"},
		{root: "t", depth: 6, es: 1, want: ".f ..."},
		{root: "t", depth: 6, es: 4, want: ".f .h/ a/ ..."}, // the fourth is a dangling link
		{root: "t", depth: 6, es: 8, want: top + " ..."},
		{root: "t", depth: 6, es: 9, want: top + " .h/x/ ..."},
		{root: "t", depth: 6, ds: 1, want: top + " ..."},
		{root: "t", depth: 6, ds: 2, want: top + " .h/x/ .h/y ..."},
		{root: "t", depth: 6, ds: 6, want: three + " ..."},
		{root: "t", depth: 6, ds: 7, want: all},
		{root: "h", depth: 6, follow: true, pruned: true, want: ".e/ .l/ d/ v/ d/f v/g"},
		{root: "h", depth: 6, follow: true, want: ".e/ .l/ d/ v/ .e/g .l/f"},
		{root: "o2", depth: 6, ds: 2, want: "a/ b/ a/x ..."},
		{root: "o2", depth: 0, ds: 1, want: "a/ b/"},
		{root: "o2", depth: 6, es: 3, want: "a/ b/ a/x ..."},
		{root: "o2", depth: 6, es: 4, want: "a/ b/ a/x b/y"},
		{root: "e", depth: 6, es: 1, want: "x/"},
		{root: "e", depth: 6, ds: 1, want: "x/ ..."},
		{root: "t/m", depth: 6, want: ""},
		{root: "t/m", depth: 6, follow: true, want: ""},
		{root: "lt", depth: 6, want: ""},
		{root: "lt", depth: 6, follow: true, want: links},
	} {
		options := filesystem.WalkOptions{
			MaxDepth: tt.depth, MaxDirectories: 100, MaxEntries: 100,
			FollowDirectorySymlinks: tt.follow, PruneHiddenDirectories: tt.pruned,
		}
		if tt.ds > 0 {
			options.MaxDirectories = tt.ds
		}
		if tt.es > 0 {
			options.MaxEntries = tt.es
		}
		if got := walk(t, at(tt.root), options); got != tt.want {
			t.Errorf("%s %+v:\n got %s\nwant %s", tt.root, options, got, tt.want)
		}
	}
	for _, root := range []string{"none", "t/dang", "none/x"} {
		for _, follow := range []bool{false, true} {
			options := walkAll
			options.FollowDirectorySymlinks = follow
			_, err := filesystem.Walk(context.Background(), at(root), options)
			if kind, _ := filesystem.Classify(err); kind != filesystem.NotFound {
				t.Errorf("%s: %v", root, err)
			}
		}
	}
}

func TestWalkLimits(t *testing.T) {
	const (
		tooMuch = "filesystem walk limits exceed maximums: depth=64, directories=10000, entries=50000"
		nothing = "filesystem walk limits must be greater than zero"
	)
	for _, tt := range []struct {
		depth, directories, entries int
		text                        string
	}{
		{65, 1, 1, tooMuch},
		{1, 10_001, 1, tooMuch},
		{1, 1, 50_001, tooMuch},
		{1, 0, 1, nothing},
		{1, 1, 0, nothing},
		{-1, 1, 1, nothing},
		{65, 1, 0, nothing},
	} {
		_, err := filesystem.Walk(context.Background(), t.TempDir(), filesystem.WalkOptions{
			MaxDepth: tt.depth, MaxDirectories: tt.directories, MaxEntries: tt.entries,
		})
		wantError(t, fmt.Sprint(tt), err, filesystem.InvalidInput, tt.text)
	}
}

// TestWalkLargeDirectory checks that a walk lists the first entries by name, not the
// first that the system returned, and that the others use no memory.
func TestWalkLargeDirectory(t *testing.T) {
	dir := testkit.MemoryDir(t)
	const n = 3_000
	for i := range n {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%06d", i)))
		ok(t, "create", err)
		f.Close()
	}
	options := filesystem.WalkOptions{MaxDirectories: 1, MaxEntries: 3}
	if got := walk(t, dir, options); got != "000000 000001 000002 ..." {
		t.Errorf("got %s", got)
	}
	var before, after runtime.MemStats
	options.MaxEntries = 100
	runtime.GC()
	runtime.ReadMemStats(&before)
	r, err := filesystem.Walk(context.Background(), dir, options)
	ok(t, "walk", err)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 1<<20 {
		t.Errorf("a walk of %d entries keeps %d bytes", len(r.Entries), kept)
	}
	options.MaxEntries = n
	if r, err := filesystem.Walk(context.Background(), dir, options); err != nil || len(r.Entries) != n || r.Truncated {
		t.Errorf("%d entries, truncated %v, %v", len(r.Entries), r.Truncated, err)
	}
	runtime.KeepAlive(r)
}

// TestWalkPathBytes checks the bound on the bytes of a result.
func TestWalkPathBytes(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c/d"} {
		put(t, filepath.Join(dir, name), "")
	}
	options := walkAll
	one := len(dir) + len("/a")
	for bytes, want := range map[int]string{
		one - 1:   "...",
		one:       "a ...",
		3*one - 1: "a b ...",
		3 * one:   "a b c/ ...",
		4*one + 1: "a b c/ ...",
		4*one + 2: "a b c/ c/d",
		0:         "a b c/ c/d",
		1 << 20:   "a b c/ c/d",
	} {
		options.MaxPathBytes = bytes
		if got := walk(t, dir, options); got != want {
			t.Errorf("%d bytes: got %s, want %s", bytes, got, want)
		}
	}
}

func TestWalkStopsWithItsContext(t *testing.T) {
	dir := testkit.MemoryDir(t)
	for i := range 50 {
		for j := range 20 {
			put(t, filepath.Join(dir, fmt.Sprint(i), fmt.Sprint(j), "f"), "")
		}
	}
	ctx := &countdown{Context: context.Background(), left: 20}
	if _, err := filesystem.Walk(ctx, dir, walkAll); !errors.Is(err, context.Canceled) {
		t.Errorf("walk went on: %v", err)
	}
}

// countdown is a context that ends after a number of checks.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}
