//go:build unix

package filesystem

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"execserver/internal/testkit"
)

// Pages have every name once, in order, although names come and go between them.
func TestReadPage(t *testing.T) {
	dir := testkit.MemoryDir(t)
	const names = pageEntries + 20
	want := make([]string, names)
	for i := range want {
		want[i] = fmt.Sprintf("%06d", i*7919%1000000) // the system's order is another one
		if err := os.Symlink("nowhere", filepath.Join(dir, want[i])); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(want)
	var got []string
	pages := 0
	for after, more := "", true; more; pages++ {
		var err error
		more, err = ReadPage(context.Background(), dir, after, true, func(e DirEntry) bool {
			if e.Itself == nil || e.Itself.Target != "nowhere" {
				t.Fatalf("%+v", e)
			}
			got = append(got, e.Name)
			return len(got) != 10 // the first page ends early, the second is full
		})
		if err != nil {
			t.Fatal(err)
		}
		after = got[len(got)-1]
		// What is gone, and what came before, does not matter any more.
		if err := os.Remove(filepath.Join(dir, after)); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("nowhere", filepath.Join(dir, "!"+fmt.Sprint(pages))); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(got, want) || pages != 3 {
		t.Errorf("%d names in %d pages, of %d", len(got), pages, len(want))
	}
}
