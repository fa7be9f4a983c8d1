package filesystem_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"execserver/internal/filesystem"
)

// TestTree reads through links that lead into and out of a directory, one of which
// changes all the time.
func TestTree(t *testing.T) {
	base := t.TempDir()
	in := func(name string) string { return filepath.Join(base, "tree", name) }
	for _, dir := range []string{in("dir"), filepath.Join(base, "else")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{in("dir/file"): "inside", filepath.Join(base, "else/file"): "outside"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"near": "dir", "far": in("dir"), "out": "../else", "file": filepath.Join(base, "else/file")} {
		if err := os.Symlink(target, in(name)); err != nil {
			t.Skip(err)
		}
	}
	if err := os.Symlink("tree", filepath.Join(base, "alias")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"tree", "alias"} {
		tree, err := filesystem.OpenTree(t.Context(), filepath.Join(base, dir))
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		read := func(name string) (string, error) {
			text, err := tree.ReadFile(t.Context(), filepath.Join(base, dir, name), 100)
			return string(text), err
		}
		for _, name := range []string{"dir/file", "near/file", "far/file"} {
			if text, err := read(name); text != "inside" || err != nil {
				t.Errorf("%s/%s: %q, %v", dir, name, text, err)
			}
		}
		for _, name := range []string{"out/file", "file", "../else/file"} {
			if text, err := read(name); !isOutside(err) {
				t.Errorf("%s/%s: %q, %v", dir, name, text, err)
			}
		}
		if _, err := read("dir"); !errors.Is(err, os.ErrInvalid) {
			t.Errorf("a directory: %v", err)
		}
		if _, err := read("none"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what is missing: %v", err)
		}
	}
	tree, err := filesystem.OpenTree(t.Context(), in(""))
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	stop := make(chan struct{})
	var flipping sync.WaitGroup
	flipping.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Symlink([]string{"dir", "../else"}[i%2], in("new"))
			_ = os.Rename(in("new"), in("flip"))
		}
	})
	for range 500 {
		if text, _ := tree.ReadFile(t.Context(), in("flip/file"), 100); string(text) == "outside" {
			t.Error("a file outside is read")
			break
		}
	}
	close(stop)
	flipping.Wait()
}

func isOutside(err error) bool {
	_, ok := errors.AsType[*filesystem.OutsideError](err)
	return ok
}

// TestWalkStaysInside walks a tree with links that lead out of its root, and with links
// within it.
func TestWalkStaysInside(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "root")
	for _, dir := range []string{"root/zone", "else/deep"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"in": "zone", "out": "../else"} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Skip(err)
		}
	}
	found, err := filesystem.Walk(t.Context(), root, filesystem.WalkOptions{
		MaxDepth: 3, MaxDirectories: 10, MaxEntries: 10, FollowDirectorySymlinks: true, StayInside: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Entries) != 2 || len(found.Errors) != 1 || found.Errors[0].Path != filepath.Join(root, "out") || !isOutside(found.Errors[0].Err) {
		t.Errorf("%+v", found)
	}
}
