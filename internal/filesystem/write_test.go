package filesystem_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"execserver/internal/filesystem"
)

func sha(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }

// leftovers fails the test if a directory holds anything but the given names.
func leftovers(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	ok(t, "read directory", err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		t.Errorf("%s holds %q, want %q", dir, got, names)
	}
}

func TestWriteFile(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	for _, want := range []string{"first", "", "a longer one", "short", strings.Repeat("x", 3<<20)} {
		ok(t, "write", filesystem.WriteFile(ctx, file, []byte(want), filesystem.WriteOptions{}))
		if got := content(t, file); got != want {
			t.Errorf("%d bytes, want %d", len(got), len(want))
		}
	}
	ok(t, "durable write", filesystem.WriteFile(ctx, file, []byte("durable"), filesystem.WriteOptions{Durable: true}))
	if got := content(t, file); got != "durable" {
		t.Errorf("got %q", got)
	}
	leftovers(t, dir, "f")

	err := filesystem.WriteFile(ctx, filepath.Join(dir, "none", "f"), nil, filesystem.WriteOptions{})
	if kind, _ := filesystem.Classify(err); kind != filesystem.NotFound {
		t.Errorf("missing parent: %v", err)
	}
	if err := filesystem.WriteFile(ctx, dir, nil, filesystem.WriteOptions{}); err == nil {
		t.Error("a directory was written")
	}
}

func TestWriteThroughLinks(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	target := put(t, filepath.Join(dir, "d", "target"), "old")
	symlink(t, "d", filepath.Join(dir, "to-d"))
	symlink(t, filepath.Join("to-d", "target"), filepath.Join(dir, "one"))
	symlink(t, filepath.Join(dir, "one"), filepath.Join(dir, "two"))
	ok(t, "write", filesystem.WriteFile(ctx, filepath.Join(dir, "two"), []byte("new"), filesystem.WriteOptions{}))
	if got := content(t, target); got != "new" {
		t.Errorf("target holds %q", got)
	}
	for _, name := range []string{"one", "two", "to-d"} {
		if _, err := os.Readlink(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s is no link any more: %v", name, err)
		}
	}
	dangling := symlink(t, filepath.Join("to-d", "made"), filepath.Join(dir, "dangling"))
	ok(t, "write", filesystem.WriteFile(ctx, dangling, []byte("made"), filesystem.WriteOptions{}))
	if got := content(t, filepath.Join(dir, "d", "made")); got != "made" {
		t.Errorf("target of the dangling link holds %q", got)
	}
	// After a link to a directory, ".." is the parent of the link's target.
	symlink(t, filepath.Join("to-d", "..", "up"), filepath.Join(dir, "d", "dots"))
	mkdir(t, filepath.Join(dir, "d", "to-d"))
	ok(t, "write", filesystem.WriteFile(ctx, filepath.Join(dir, "d", "dots"), []byte("up"), filesystem.WriteOptions{}))
	if got := content(t, filepath.Join(dir, "d", "up")); got != "up" {
		t.Errorf("got %q", got)
	}
}

func TestExpectedSHA256(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	file := put(t, filepath.Join(dir, "f"), "one")
	write := func(path, data, want string) error {
		return filesystem.WriteFile(ctx, path, []byte(data), filesystem.WriteOptions{ExpectedSHA256: want})
	}
	ok(t, "write", write(file, "two", strings.ToUpper(sha("one"))))
	err := write(file, "three", sha("one"))
	wantError(t, "stale write", err, filesystem.InvalidInput, "file has changed: sha256 is "+sha("two")+", expected "+sha("one"))
	if changed, is := errors.AsType[*filesystem.ChangedError](err); !is || changed.Got != sha("two") {
		t.Errorf("error = %#v", err)
	}
	if got := content(t, file); got != "two" {
		t.Errorf("file holds %q", got)
	}
	err = write(filepath.Join(dir, "none"), "x", sha(""))
	wantError(t, "missing file", err, filesystem.InvalidInput, "file has changed: it does not exist, expected sha256 "+sha(""))
	wantError(t, "bad hash", write(file, "x", "abc"), filesystem.InvalidInput, "expected sha256 must be 64 hex digits")
	leftovers(t, dir, "f")
}

// TestExpectedSHA256LetsOneWriterThrough checks that of many writers that expect the same
// content, only one writes.
func TestExpectedSHA256LetsOneWriterThrough(t *testing.T) {
	ctx := context.Background()
	file := put(t, filepath.Join(t.TempDir(), "f"), "0")
	for round := range 20 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		wrote := 0
		for i := range 8 {
			wg.Go(func() {
				err := filesystem.WriteFile(ctx, file, fmt.Appendf(nil, "%d by %d", round, i),
					filesystem.WriteOptions{ExpectedSHA256: sha("0")})
				if _, changed := errors.AsType[*filesystem.ChangedError](err); err != nil && !changed {
					t.Error(err)
				}
				if err == nil {
					mu.Lock()
					wrote++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if wrote != 1 {
			t.Fatalf("round %d: %d writers got through", round, wrote)
		}
		put(t, file, "0")
	}
}

// TestExpectedSHA256OfFilesWithSeveralNames checks the same for writers that use
// different names of the file.
func TestExpectedSHA256OfFilesWithSeveralNames(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	old := strings.Repeat("0", 1<<20) // large enough that the check takes a moment
	names := []string{filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(mkdir(t, filepath.Join(dir, "d")), "c")}
	put(t, names[0], old)
	for _, name := range names[1:] {
		ok(t, "link", os.Link(names[0], name))
	}
	for round := range 20 {
		var wg sync.WaitGroup
		var wrote atomic.Int32
		for i := range 9 {
			wg.Go(func() {
				err := filesystem.WriteFile(ctx, names[i%3], fmt.Appendf(nil, "%d by %d", round, i),
					filesystem.WriteOptions{ExpectedSHA256: sha(old)})
				if _, changed := errors.AsType[*filesystem.ChangedError](err); err != nil && !changed {
					t.Error(err)
				}
				if err == nil {
					wrote.Add(1)
				}
			})
		}
		wg.Wait()
		if n := wrote.Load(); n != 1 {
			t.Fatalf("round %d: %d writers got through", round, n)
		}
		put(t, names[0], old)
	}
}

// TestDurableWrites checks that durable writes wait for the disk: first for the content,
// then for the name.
func TestDurableWrites(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	var synced []string
	filesystem.OnSync(t, func(f *os.File) {
		info, err := f.Stat()
		ok(t, "stat", err)
		what := "directory"
		if info.Mode().IsRegular() {
			what = fmt.Sprint("file of ", info.Size())
		}
		synced = append(synced, what)
	})
	var h filesystem.Handles
	defer h.Close()
	check := func(what string, content string, named bool, err error) {
		t.Helper()
		ok(t, what, err)
		want := []string{}
		if content != "" {
			want = append(want, "file of "+content)
			if named && runtime.GOOS == "linux" {
				want = append(want, "directory")
			}
		}
		if !slices.Equal(synced, want) {
			t.Errorf("%s: %v, want %v", what, synced, want)
		}
		synced = nil
	}
	file := filepath.Join(dir, "f")
	durable := filesystem.WriteOptions{Durable: true}
	check("new file", "3", true, filesystem.WriteFile(ctx, file, []byte("new"), durable))
	check("old file", "4", false, filesystem.WriteFile(ctx, file, []byte("file"), durable))
	check("copy", "4", true, filesystem.Copy(ctx, file, filepath.Join(dir, "g"), filesystem.CopyOptions{Durable: true}))
	ok(t, "link", os.Link(file, filepath.Join(dir, "link")))
	check("in place", "5", false, filesystem.WriteFile(ctx, file, []byte("place"), durable))
	check("not durable", "", false, filesystem.WriteFile(ctx, file, []byte("x"), filesystem.WriteOptions{}))

	for _, durable := range []bool{true, false} {
		h := filesystem.Handles{Durable: durable}
		ok(t, "open", h.Open(ctx, "w", file, filesystem.HandleReplace))
		ok(t, "write", h.WriteBlock(ctx, "w", 0, []byte("block")))
		content := ""
		if durable {
			content = "5"
		}
		check("blocks", content, false, h.CloseHandle("w"))
		ok(t, "open", h.Open(ctx, "r", file, filesystem.HandleRead))
		check("reader", "", false, h.CloseHandle("r"))
	}
}
