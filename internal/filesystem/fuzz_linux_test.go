package filesystem_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"execserver/internal/filesystem"
)

// plant makes a small tree that is full of traps, next to a file that must survive.
func plant(t *testing.T, base string) (inside, outside string) {
	t.Helper()
	ok(t, "clear", os.RemoveAll(base+"/in"))
	inside, outside = base+"/in", base+"/out"
	put(t, outside+"/f", "precious")
	put(t, outside+"/d/f", "precious")
	put(t, inside+"/f", "top")
	put(t, inside+"/d/f", "in d")
	mkdir(t, inside+"/d/e")
	for name, text := range map[string]string{
		"l": "f", "m": "d", "up": "..", "abs": outside, "out": "../out", "loop": "loop",
		"dang": "none", "dout": "../out/new", "d/l": "../f", "d/o": "../../out/f", "d/m": "e",
	} {
		symlink(t, text, inside+"/"+name)
	}
	return inside, outside
}

func intact(t *testing.T, outside, what string) {
	t.Helper()
	leftovers(t, outside, "d", "f")
	leftovers(t, outside+"/d", "f")
	for _, name := range []string{"/f", "/d/f"} {
		if got := content(t, outside+name); got != "precious" {
			t.Errorf("%s: outside%s holds %q", what, name, got)
		}
	}
}

// hasLink reports whether a component of a path below root is a link.
func hasLink(root, rel string) bool {
	at := root
	for _, part := range strings.Split(rel, "/") {
		at += "/" + part
		if info, err := os.Lstat(at); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return true
		}
	}
	return false
}

// FuzzNoFollowStaysInside checks that with NoFollow no operation leaves a directory
// through a link: it reads what os.Root reads, and changes nothing outside.
func FuzzNoFollowStaysInside(f *testing.F) {
	for _, s := range []string{
		"", "f", "d/f", "d/e", "l", "m/f", "m/e", "up/out/f", "abs/f", "out/f", "out/d", "out", "loop", "loop/x",
		"dang", "dang/x", "dout", "d/l", "d/o", "d/m", "d/m/new", "new/deep/er", "d/../f", "f/x", "\xff", "d//e/", ".", "...",
	} {
		f.Add(s)
	}
	ctx := context.Background()
	f.Fuzz(func(t *testing.T, name string) {
		if strings.IndexByte(name, 0) >= 0 || len(name) > 200 {
			return
		}
		base, err := filepath.EvalSymlinks(t.TempDir())
		ok(t, "temporary directory", err)
		inside, outside := plant(t, base)
		rel := strings.TrimPrefix(path.Clean("/"+name), "/")
		if rel == "" {
			rel = "."
		}
		file := path.Join(inside, rel)
		root, err := os.OpenRoot(inside)
		ok(t, "open root", err)
		defer root.Close()

		want, wantErr := root.ReadFile(rel)
		got, err := filesystem.ReadFile(ctx, file, filesystem.ReadOptions{Links: filesystem.NoFollow})
		link := rel != "." && hasLink(inside, rel)
		switch {
		case err == nil && (link || wantErr != nil || string(got) != string(want)):
			t.Errorf("read %q: %q, link %v; os.Root says %q, %v", rel, got, link, want, wantErr)
		case err != nil && wantErr == nil && !link:
			t.Errorf("read %q: %v; os.Root says %q", rel, err, want)
		}
		m, err := filesystem.GetMetadata(ctx, file, filesystem.NoFollow)
		info, wantErr := root.Lstat(rel)
		switch {
		case err == nil && (link || wantErr != nil || m.IsDirectory != info.IsDir() || m.IsFile != info.Mode().IsRegular()):
			t.Errorf("metadata of %q: %+v, link %v; os.Root says %v, %v", rel, m, link, info, wantErr)
		case err != nil && wantErr == nil && !link:
			t.Errorf("metadata of %q: %v; os.Root has it", rel, err)
		}

		for what, change := range map[string]func() error{
			"write": func() error {
				return filesystem.WriteFile(ctx, file, []byte("new"), filesystem.WriteOptions{Links: filesystem.NoFollow})
			},
			"create": func() error {
				return filesystem.CreateDirectory(ctx, file, filesystem.CreateDirectoryOptions{Links: filesystem.NoFollow, Recursive: true})
			},
			"rename": func() error {
				return filesystem.Rename(ctx, inside+"/d/f", file, filesystem.RenameOptions{Links: filesystem.NoFollow})
			},
			"remove": func() error {
				return filesystem.Remove(ctx, file, filesystem.RemoveOptions{Links: filesystem.NoFollow, Recursive: true})
			},
		} {
			err := change()
			if err == nil && link {
				t.Errorf("%s %q went through a link", what, rel)
			}
			if kind, text := filesystem.Classify(err); err != nil && (text == "" || kind == filesystem.NotFound && !errors.Is(err, fs.ErrNotExist)) {
				t.Errorf("%s %q: %v is reported as %q", what, rel, err, text)
			}
			intact(t, outside, what)
			plant(t, base)
		}
		// Even when it follows links, Remove removes the link and not its target.
		if link && path.Dir(rel) == "." {
			if err := filesystem.Remove(ctx, file, filesystem.RemoveOptions{Recursive: true}); err != nil {
				t.Errorf("remove link %q: %v", rel, err)
			}
			intact(t, outside, "remove")
		}
	})
}
