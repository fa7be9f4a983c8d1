package filesystem_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/filesystem"
)

func TestCreateDirectory(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	deep := filepath.Join(dir, "a", "b", "c")
	recursive := filesystem.CreateDirectoryOptions{Recursive: true}
	for range 2 {
		ok(t, "recursive", filesystem.CreateDirectory(ctx, deep, recursive))
	}
	if info, err := os.Stat(deep); err != nil || !info.IsDir() {
		t.Fatal(err)
	}
	ok(t, "plain", filesystem.CreateDirectory(ctx, filepath.Join(dir, "plain"), filesystem.CreateDirectoryOptions{}))
	err := filesystem.CreateDirectory(ctx, filepath.Join(dir, "none", "d"), filesystem.CreateDirectoryOptions{})
	if kind, _ := filesystem.Classify(err); kind != filesystem.NotFound {
		t.Errorf("missing parent: %v", err)
	}
	if err := filesystem.CreateDirectory(ctx, put(t, filepath.Join(dir, "f"), ""), recursive); err == nil {
		t.Error("a file became a directory")
	}
}

func TestRemove(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	outside := put(t, filepath.Join(dir, "outside", "f"), "safe")
	tree := filepath.Join(dir, "tree")
	for i := range 1100 { // more than one batch
		put(t, filepath.Join(tree, "many", fmt.Sprint(i)), "")
	}
	put(t, filepath.Join(tree, "a", "b", "c", "f"), "")
	symlink(t, filepath.Join(dir, "outside"), filepath.Join(tree, "a", "link"))
	all := filesystem.RemoveOptions{Recursive: true}

	if err := filesystem.Remove(ctx, tree, filesystem.RemoveOptions{}); err == nil {
		t.Error("a full directory was removed without Recursive")
	}
	ok(t, "link", filesystem.Remove(ctx, symlink(t, "outside", filepath.Join(dir, "link")), all))
	ok(t, "tree", filesystem.Remove(ctx, tree, all))
	if got := content(t, outside); got != "safe" {
		t.Errorf("outside: %q", got)
	}
	leftovers(t, dir, "outside")

	for _, path := range []string{tree, filepath.Join(tree, "below")} {
		kind, _ := filesystem.Classify(filesystem.Remove(ctx, path, all))
		if kind != filesystem.NotFound {
			t.Errorf("missing %s: %v", path, kind)
		}
		ok(t, "force", filesystem.Remove(ctx, path, filesystem.RemoveOptions{Recursive: true, Force: true}))
	}
}

func TestRename(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	a, b := put(t, filepath.Join(dir, "a"), "a"), filepath.Join(dir, "b")
	ok(t, "rename", filesystem.Rename(ctx, a, b, filesystem.RenameOptions{NoReplace: true}))
	put(t, a, "again")
	if err := filesystem.Rename(ctx, a, b, filesystem.RenameOptions{NoReplace: true}); err == nil {
		t.Error("replaced with NoReplace")
	}
	ok(t, "replace", filesystem.Rename(ctx, a, b, filesystem.RenameOptions{}))
	if got := content(t, b); got != "again" {
		t.Errorf("holds %q", got)
	}
	kind, _ := filesystem.Classify(filesystem.Rename(ctx, a, b, filesystem.RenameOptions{}))
	if kind != filesystem.NotFound {
		t.Errorf("missing source: %v", kind)
	}
}

func TestCopy(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	copyOf := func(from, to string) error {
		return filesystem.Copy(ctx, at(from), at(to), filesystem.CopyOptions{Recursive: true})
	}
	put(t, at("src/f"), "f")
	put(t, at("src/sub/g"), strings.Repeat("g", 100_000))
	mkdir(t, at("src/empty"))

	ok(t, "file", copyOf("src/f", "f"))
	ok(t, "file over file", copyOf("src/sub/g", "f"))
	if got := content(t, at("f")); len(got) != 100_000 {
		t.Errorf("copy holds %d bytes", len(got))
	}
	ok(t, "tree, with parents", copyOf("src", "deep/er/dst"))
	put(t, at("deep/er/dst/extra"), "kept")
	ok(t, "tree, merged", copyOf("src", "deep/er/dst"))
	for name, want := range map[string]string{"f": "f", "sub/g": strings.Repeat("g", 100_000), "extra": "kept"} {
		if got := content(t, at("deep/er/dst/"+name)); got != want {
			t.Errorf("%s holds %d bytes", name, len(got))
		}
	}
	leftovers(t, at("deep/er/dst/empty"))

	symlink(t, "nowhere", at("src/link"))
	ok(t, "link", copyOf("src/link", "link"))
	if text, err := os.Readlink(at("link")); err != nil || text != "nowhere" {
		t.Errorf("link: %q, %v", text, err)
	}
}

// TestCopyOntoItself checks that copying a file onto itself, under whatever name, does
// not empty it.
func TestCopyOntoItself(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	file := put(t, at("d/f"), "precious")
	ok(t, "link", os.Link(file, at("hard")))
	symlink(t, "d/f", at("soft"))
	symlink(t, "d", at("dir"))
	for _, to := range []string{"d/f", "hard", "soft", "dir/f"} {
		err := filesystem.Copy(ctx, file, at(to), filesystem.CopyOptions{})
		wantError(t, to, err, filesystem.InvalidInput, "fs/copy cannot copy a file onto itself")
	}
	for _, to := range []string{"d", "d/below", "d/be/low", "dir", "dir/below"} {
		err := filesystem.Copy(ctx, at("d"), at(to), filesystem.CopyOptions{Recursive: true})
		wantError(t, to, err, filesystem.InvalidInput, "fs/copy cannot copy a directory to itself or one of its descendants")
	}
	// Two trees may share a file.
	mkdir(t, at("e"))
	ok(t, "link", os.Link(file, at("e/f")))
	ok(t, "tree", filesystem.Copy(ctx, at("d"), at("e"), filesystem.CopyOptions{Recursive: true}))
	if got := content(t, file); got != "precious" {
		t.Errorf("file holds %q", got)
	}
	leftovers(t, at("d"), "f")
}
