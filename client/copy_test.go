//go:build unix

package client_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
)

// copyTree makes a directory with everything that a copy keeps.
func copyTree(t *testing.T) string {
	t.Helper()
	dir := tree(t)
	when := time.Unix(1234567890, 123456789)
	err := errors.Join(
		os.WriteFile(filepath.Join(dir, "a/b/tool"), []byte("#!/bin/sh\n"), 0o755),
		os.WriteFile(filepath.Join(dir, "a/large"), testkit.Pattern(1<<20+12345), 0o640),
		os.Symlink("/nowhere/at all", filepath.Join(dir, "dangling")),
		os.Chmod(filepath.Join(dir, "a/b/tool"), 0o755),
		os.Chmod(filepath.Join(dir, "none"), 0o700),
		os.WriteFile(filepath.Join(dir, "odd\xff name"), []byte("not UTF-8"), 0o600),
	)
	for _, name := range []string{"hello.txt", "a/large", "a/b/tool", "a/b", "."} {
		err = errors.Join(err, os.Chtimes(filepath.Join(dir, name), when, when))
	}
	if err == nil {
		err = os.Chmod(filepath.Join(dir, "a/b"), 0o555)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "a/b"), 0o755) })
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// described lists a tree: kinds, sizes and contents, and with all also modes, times and
// links. Without all, links are left out.
func described(t *testing.T, dir string, all bool) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !all && (info.Mode().Type() == fs.ModeSymlink || name == "link") {
			return nil
		}
		line := fmt.Sprintf("%q %v", name, info.Mode().Type())
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %x", len(data), sha256.Sum256(data))
		case info.Mode().Type() == fs.ModeSymlink:
			text, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + text
		}
		if all && info.Mode().Type() != fs.ModeSymlink {
			line += fmt.Sprintf(" %v %v", info.Mode().Perm(), info.ModTime().UnixNano())
		}
		list = append(list, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func hasMetadata(env *client.Environment) bool { return env.Info().Capabilities["fsMetadata"] }

// sameTrees compares two trees.
func sameTrees(t *testing.T, got, want string, all bool) {
	t.Helper()
	is, should := described(t, got, all), described(t, want, all)
	for _, line := range is {
		if !slices.Contains(should, line) {
			t.Errorf("the copy has %s", line)
		}
	}
	for _, line := range should {
		if !slices.Contains(is, line) {
			t.Errorf("the copy lacks %s", line)
		}
	}
}

// watched are the options of a copy that records what happens.
type watched struct {
	client.CopyOptions
	last     client.CopyProgress
	problems []*fs.PathError
}

func watch() *watched {
	w := new(watched)
	w.Progress = func(p client.CopyProgress) { w.last = p }
	w.Problem = func(p *fs.PathError) { w.problems = append(w.problems, p) }
	return w
}

// onlyLinks reports whether every problem is about one of the links in a copyTree.
// The released server also lists a name that is not UTF-8 as another one.
func (w *watched) onlyLinks() bool {
	return !slices.ContainsFunc(w.problems, func(p *fs.PathError) bool {
		return !slices.Contains([]string{"link", "dirlink", "dangling", "odd\ufffd name"}, filepath.Base(p.Path))
	})
}

func TestCopyTrees(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		source, all := copyTree(t), hasMetadata(env)
		dir, back := t.TempDir(), t.TempDir()
		in := watch()
		if err := env.FS(dir).CopyIn(source, "copy", &in.CopyOptions); err != nil && (all || !in.onlyLinks()) {
			t.Fatalf("CopyIn: %v", err)
		}
		sameTrees(t, filepath.Join(dir, "copy"), source, all)
		if want := int64(1<<20 + 12345 + 500 + 6 + 4 + 4 + 10 + 9); !in.last.Complete || in.last.Bytes < want || in.last.Files < 8 {
			t.Errorf("CopyIn told %+v at the end", in.last)
		}
		out := watch()
		local := filepath.Join(back, "back")
		if err := env.FS(source).CopyOut(".", local, &out.CopyOptions); err != nil && (all || !out.onlyLinks()) {
			t.Fatalf("CopyOut: %v", err)
		}
		if p.codex {
			_ = os.Remove(filepath.Join(source, "odd\xff name"))
		}
		sameTrees(t, local, source, all)
		if !out.last.Complete || out.last.Bytes != in.last.Bytes && all {
			t.Errorf("CopyOut told %+v at the end, CopyIn %+v", out.last, in.last)
		}
	})
}

// fill makes a directory of many small files.
func fill(t *testing.T, dir string, n int) {
	t.Helper()
	for i := range n {
		path := filepath.Join(dir, fmt.Sprintf("d%d", i%7), fmt.Sprintf("file%d", i))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, testkit.Pattern(int64(i)), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// directions are the two ways of a copy within this machine.
var directions = map[string]func(env *client.Environment, from, to string, opts *client.CopyOptions) error{
	"in": func(env *client.Environment, from, to string, opts *client.CopyOptions) error {
		return env.FS(to).CopyIn(from, ".", opts)
	},
	"out": func(env *client.Environment, from, to string, opts *client.CopyOptions) error {
		return env.FS(from).CopyOut(".", to, opts)
	},
}

// bothWays runs a test with each direction.
func bothWays(t *testing.T, run func(t *testing.T, copy func(env *client.Environment, from, to string, opts *client.CopyOptions) error)) {
	for name, copy := range directions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, copy)
		})
	}
}

// TestCopyAgain checks that a copy does not repeat what is there.
func TestCopyAgain(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, copy func(*client.Environment, string, string, *client.CopyOptions) error) {
		env := openWebSocket(t, nil)
		source, target := copyTree(t), filepath.Join(t.TempDir(), "copy")
		w := watch()
		if err := copy(env, source, target, &w.CopyOptions); err != nil {
			t.Fatal(err)
		}
		all := w.last.Files
		w = watch()
		if err := copy(env, source, target, &w.CopyOptions); err != nil {
			t.Fatal(err)
		}
		if w.last.Files != 0 || w.last.Bytes != 0 || w.last.Unchanged != all || w.last.TotalBytes != 0 {
			t.Errorf("the second copy told %+v, and the first copied %d files", w.last, all)
		}
		when := time.Unix(1234567890, 123456789)
		err := errors.Join(
			os.WriteFile(filepath.Join(source, "hello.txt"), []byte("HELLO\n"), 0o644), // of the same size
			os.Chmod(filepath.Join(source, "pattern"), 0o600),
			os.Remove(filepath.Join(source, "link")),
			os.Symlink("elsewhere", filepath.Join(source, "link")),
			os.Chtimes(filepath.Join(source, "."), when, when),
			os.WriteFile(filepath.Join(target, "more"), nil, 0o644),
		)
		if err != nil {
			t.Fatal(err)
		}
		w = watch()
		w.Modes = true
		if err := copy(env, source, target, &w.CopyOptions); err != nil {
			t.Fatal(err)
		}
		if w.last.Files != 2 || w.last.Unchanged != all-2 {
			t.Errorf("the third copy told %+v", w.last)
		}
		if err := os.Remove(filepath.Join(target, "more")); err != nil { // merged, not removed
			t.Error(err)
		}
		_ = os.Chtimes(target, when, when)
		sameTrees(t, target, source, true)
	})
}

// TestCopyInPlace checks that an existing file stays the same file: its inode, its mode and
// its other names.
func TestCopyInPlace(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, copy func(*client.Environment, string, string, *client.CopyOptions) error) {
		env := openWebSocket(t, nil)
		source, target, other := t.TempDir(), t.TempDir(), t.TempDir()
		sizes := map[string]int64{"empty": 0, "small": 1000, "large": 1<<20 + 7}
		before := map[string]fs.FileInfo{}
		for name, size := range sizes {
			err := errors.Join(
				os.WriteFile(filepath.Join(source, name), testkit.Pattern(size), 0o600),
				os.WriteFile(filepath.Join(target, name), bytes.Repeat([]byte("old"), 1<<20), 0o644),
				os.Chmod(filepath.Join(target, name), 0o664),
				os.Link(filepath.Join(target, name), filepath.Join(other, name)),
			)
			if err != nil {
				t.Fatal(err)
			}
			if before[name], err = os.Stat(filepath.Join(target, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := copy(env, source, target, nil); err != nil {
			t.Fatal(err)
		}
		for name, size := range sizes {
			after, err := os.Stat(filepath.Join(target, name))
			from, fromErr := os.Stat(filepath.Join(source, name))
			if err := errors.Join(err, fromErr); err != nil {
				t.Fatal(err)
			}
			if !os.SameFile(before[name], after) || after.Mode() != 0o664 || !after.ModTime().Equal(from.ModTime()) {
				t.Errorf("%s: %v %v, same file: %v", name, after.Mode(), after.ModTime(), os.SameFile(before[name], after))
			}
			if data, err := os.ReadFile(filepath.Join(other, name)); err != nil || !bytes.Equal(data, testkit.Pattern(size)) {
				t.Errorf("%s has %d bytes, %v", name, len(data), err)
			}
		}
		w := watch()
		w.Modes = true
		if err := copy(env, source, target, &w.CopyOptions); err != nil || w.last.Unchanged != int64(len(sizes)) {
			t.Fatalf("again, with modes: %+v, %v", w.last, err)
		}
		for name := range sizes {
			if info, err := os.Stat(filepath.Join(target, name)); err != nil || info.Mode() != 0o600 || !os.SameFile(before[name], info) {
				t.Errorf("%s, with modes: %v, %v", name, info, err)
			}
		}
	})
}

// TestCopyOverCuts checks that a copy goes on when the connection breaks, again and again.
func TestCopyOverCuts(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, copy func(*client.Environment, string, string, *client.CopyOptions) error) {
		env, p := link(t, nil)
		source, target := copyTree(t), filepath.Join(t.TempDir(), "copy")
		fill(t, filepath.Join(source, "many"), 150)
		if err := os.WriteFile(filepath.Join(source, "larger"), testkit.Pattern(3<<20), 0o644); err != nil {
			t.Fatal(err)
		}
		p.cutEvery(1500, 6)
		w := watch()
		if err := copy(env, source, target, &w.CopyOptions); err != nil {
			t.Fatal(err)
		}
		if p.cutCount() == 0 {
			t.Error("the connection was never cut")
		}
		sameTrees(t, target, source, true)
		if left, _ := filepath.Glob(filepath.Join(target, ".exec-server-*")); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
}

// TestCopyProblems checks that a copy goes on after what cannot be copied, and tells it.
func TestCopyProblems(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, copy func(*client.Environment, string, string, *client.CopyOptions) error) {
		env := openWebSocket(t, nil)
		source, target := tree(t), filepath.Join(t.TempDir(), "copy")
		err := errors.Join(
			syscall.Mkfifo(filepath.Join(source, "fifo"), 0o644),
			os.MkdirAll(filepath.Join(target, "hello.txt"), 0o755), // a directory where a file should be
			os.MkdirAll(filepath.Join(target, "link"), 0o755),      // and where a link should be
			os.WriteFile(filepath.Join(target, "a"), nil, 0o644),   // a file where a directory should be
			os.Symlink("/etc", filepath.Join(target, "none")),      // and a link
			os.Symlink("/etc/passwd", filepath.Join(target, "empty")),
		)
		if err != nil {
			t.Fatal(err)
		}
		w := watch()
		err = copy(env, source, target, &w.CopyOptions)
		failed, ok := errors.AsType[*client.CopyError](err)
		if !ok || failed.Failed != 4 || len(failed.Problems) != 4 || w.last.Failed != 4 || w.last.LeftOut != 1 {
			t.Fatalf("%v; told %+v, %v", err, w.last, w.problems)
		}
		var told []string
		for _, p := range w.problems {
			name, _ := filepath.Rel(source, p.Path)
			if errors.Is(p, client.ErrSpecialFile) {
				name += " special"
			}
			told = append(told, name)
		}
		slices.Sort(told)
		if want := []string{"a", "fifo special", "hello.txt", "link", "none"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
		if info, err := os.Lstat(filepath.Join(target, "empty")); err != nil || !info.Mode().IsRegular() {
			t.Errorf("a file in the place of a link: %v, %v", info, err)
		}
		if got, _ := os.ReadFile(filepath.Join(target, "pattern")); len(got) != 500 {
			t.Errorf("the rest is not copied: %d bytes", len(got))
		}
		if entries, err := os.ReadDir("/etc/none"); err == nil {
			t.Errorf("written through a link: %v", entries)
		}
	})
}

// TestCopyLeavesSpecialFiles checks that no copy puts a file or a link in the place of a
// FIFO, and so of a device: cp file :/dev/full, by root, would break the machine.
func TestCopyLeavesSpecialFiles(t *testing.T) {
	t.Parallel()
	env := openWebSocket(t, nil)
	dir, target := t.TempDir(), t.TempDir()
	large := testkit.Pattern(1<<20 + 1)
	err := errors.Join(
		os.WriteFile(filepath.Join(dir, "small"), []byte("x"), 0o644),
		os.WriteFile(filepath.Join(dir, "large"), large, 0o644),
		os.Symlink("small", filepath.Join(dir, "link")))
	for _, name := range []string{"small", "large", "link"} {
		err = errors.Join(err, syscall.Mkfifo(filepath.Join(target, name), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, client.ErrSpecialFile) {
			t.Errorf("%s: %v", what, err)
		}
		for _, name := range []string{"small", "large", "link"} {
			if info, err := os.Lstat(filepath.Join(target, name)); err != nil || info.Mode().Type() != fs.ModeNamedPipe {
				t.Errorf("%s: there is %v, %v in place of the FIFO %s", what, info, err, name)
			}
		}
	}
	check("CopyIn", env.FS(target).CopyIn(dir, ".", nil))
	check("CopyOut", env.FS(dir).CopyOut(".", target, nil))
	check("CopyIn of a file", env.FS(target).CopyIn(filepath.Join(dir, "large"), "large", nil))
	check("CopyOut of a file", env.FS(dir).CopyOut("small", filepath.Join(target, "small"), nil))
	if entries, err := os.ReadDir(target); err != nil || len(entries) != 3 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestCopyRefused(t *testing.T) {
	t.Parallel()
	env := openWebSocket(t, nil)
	dir := tree(t)
	target := t.TempDir()
	if err := env.FS(target).CopyIn(filepath.Join(dir, "nope"), "x", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("CopyIn of nothing: %v", err)
	}
	if err := env.FS(target).CopyIn(dir, "no/such/place", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("CopyIn to nowhere: %v", err)
	}
	if err := env.FS(dir).CopyOut("nope", filepath.Join(target, "x"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("CopyOut of nothing: %v", err)
	}
	if err := env.FS(dir).CopyOut(".", filepath.Join(target, "no/such/place"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("CopyOut to nowhere: %v", err)
	}
	if err := env.FS(dir).CopyOut("hello.txt", filepath.Join(target, "no/such/place"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("CopyOut of a file to nowhere: %v", err)
	}
	if err := env.FS("/").CopyOut("dev/null", filepath.Join(target, "x"), nil); !errors.Is(err, client.ErrSpecialFile) {
		t.Errorf("CopyOut of a device: %v", err)
	}
	if err := env.FS(target).CopyIn("/dev/null", "x", nil); !errors.Is(err, client.ErrSpecialFile) {
		t.Errorf("CopyIn of a device: %v", err)
	}
	if err := env.FS(target).CopyIn(filepath.Join(dir, "a"), "../x", nil); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("CopyIn to a name that is none: %v", err)
	}
	if entries, err := os.ReadDir(target); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}
